"""The command from end to end: resuming, libraries that are missing, judging, tables, mistakes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sgoif.errors import SettingError
from sgoif_bench.fidelity import registry, runner
from sgoif_bench.fidelity.answer import Answer
from sgoif_bench.fidelity.grid import KIND
from sgoif_bench.fidelity.peers.common import MissingPeerError
from sgoif_bench.fidelity.registry import METHODS, PEER, Entry, choose
from sgoif_bench.fidelity.run import main, run_fidelity
from sgoif_bench.fidelity.settings import FidelitySettings
from sgoif_bench.fidelity.table import FidelityTableSettings, value_of
from sgoif_bench.kinds import kind_of
from sgoif_bench.tables.layout import render
from sgoif_bench.unlearning.measures import spearman

pytest.importorskip("sklearn")
SMALL = {
    "limit": 100,
    "epochs": 2,
    "queries": 10,
    "subsets": 4,
    "left_out": "3",
    "groups": 4,
    "brittle": 2,
    "device": "cpu",
}


def absent(trained):
    raise MissingPeerError("kronfluence", "kronfluence")


def broken(trained):
    raise RuntimeError("a size that does not fit")


def omniscient(trained):
    """Scores that know which labels are wrong."""
    study = trained.study
    scores = np.tile(np.where(study.wrong, -1.0, 0.1).astype(np.float32), (len(study.queries), 1))
    return Answer(scores, 0.5, {"kind": "resident", "peak_bytes": 2**20})


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {
        "sgoif-head": METHODS["sgoif-head"],
        "ekfac": Entry("absent", PEER, absent),
        "lissa": Entry("broken", PEER, broken),
        "trak-1": Entry("omniscient", PEER, omniscient),
    }
    for module in (registry, runner):
        monkeypatch.setattr(module, "METHODS", entries)


@pytest.mark.usefixtures("few")
def test_a_run_lists_what_could_not_run_and_goes_on_where_it_stopped(tmp_path: Path, monkeypatch):
    out, told = tmp_path / "f.jsonl", []
    whole = run_fidelity(FidelitySettings(**SMALL), out, "command", told.append)
    lines = {line["method"]: line for line in KIND.read([out])}
    assert not whole["failed"]
    assert set(lines) == {"sgoif-head", "ekfac", "lissa", "trak-1"}
    assert "benchmarks[peers]" in lines["ekfac"]["error"]
    assert lines["lissa"]["error"] == "RuntimeError: a size that does not fit"
    assert lines["ekfac"]["metrics"] == {}

    ours, other = lines["sgoif-head"], lines["trak-1"]
    assert ours["error"] is None
    assert len(ours["metrics"]["lds_by_query"]) == 10
    assert ours["metrics"]["lds"] == pytest.approx(np.mean(ours["metrics"]["lds_by_query"]), abs=1e-3)
    assert -1 <= ours["metrics"]["confidence_spearman"] <= 1
    expected, real = (ours["metrics"][name] for name in ("expected_error_by_query", "error_by_query"))
    assert ours["metrics"]["error_spearman"] == pytest.approx(spearman(np.array(expected), np.array(real)), abs=0.05)
    assert list(ours["metrics"]["left_out"]) == ["3"]
    assert [part["removed"] for part in ours["metrics"]["brittle"]] == [1, 5]
    assert [part["queries"] for part in ours["brittle_at_random"]] == [2, 2]
    assert set(ours["metrics"]["error_plain_spearman"]) >= {"doubt", "gradient"}
    assert other["metrics"]["wrong_aupr"] == other["metrics"]["wrong_auroc"] == 1.0
    assert not {"confidence_spearman", "error_spearman"} & set(other["metrics"])

    def refuse(*_):
        raise AssertionError("the truth was trained twice")

    monkeypatch.setattr(runner, "train_sets", refuse)
    run_fidelity(FidelitySettings(**SMALL), out, "command", told.append)
    assert any("4 results asked for, 2 already in" in message for message in told)
    assert any("0 networks of the truth" in message for message in told)
    assert len(out.read_text().splitlines()) == 6

    table = render(KIND.read([out]), FidelityTableSettings(metric="lds,wrong_aupr"))
    assert "10% wrong labels" in table
    assert "absent" not in table
    assert kind_of([out]) == "fidelity"


@pytest.mark.usefixtures("few")
def test_our_own_failure_is_a_failure(tmp_path: Path, monkeypatch, capsys):
    registry.METHODS["sgoif-head"] = Entry("ours", registry.VARIANT, broken)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    code = main([*options, "--methods", "sgoif-head", "--out", str(tmp_path / "f.jsonl"), "--json"])
    assert code == 1
    assert json.loads(capsys.readouterr().out)["failed"][0]["method"] == "sgoif-head"


@pytest.mark.parametrize(
    ("scores", "said"),
    [(np.zeros((3, 3), np.float32), "expected"), (np.full((10, 100), np.nan, np.float32), "not finite")],
)
@pytest.mark.usefixtures("few")
def test_scores_that_are_none_are_refused(tmp_path: Path, scores, said):
    registry.METHODS["lissa"] = Entry("odd", PEER, lambda trained: Answer(scores, 0.0, {}))
    settings = FidelitySettings(**{**SMALL, "left_out": "none", "brittle": 0}, methods="lissa")
    run_fidelity(settings, tmp_path / "f.jsonl", "command", lambda message: None)
    (line,) = KIND.read([tmp_path / "f.jsonl"])
    assert said in line["error"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"methods": "magic"}, "magic"),
        ({"sets": "nothing"}, "nothing"),
        ({"wrong_shares": "1.5"}, "1.5"),
        ({"wrong_shares": "few"}, "few"),
        ({"left_out": "0"}, "left-out"),
        ({"relabelled": "x"}, "relabelled"),
        ({"alone": 2}, "too few"),
        ({"alone": -1}, "alone"),
        ({"changes": 2}, "changes"),
        ({"pairs": 0}, "pairs"),
        ({"share": 1.0}, "share"),
        ({"subsets": 2}, "subsets"),
        ({"workers": 0}, "workers"),
    ],
)
def test_mistakes_are_named(wrong, said):
    with pytest.raises(SettingError, match=said):
        FidelitySettings(**wrong)


def test_a_mistake_on_the_command_line_is_a_sentence(capsys, tmp_path: Path):
    assert main(["--methods", "magic", "--out", str(tmp_path / "f.jsonl")]) == 2
    error = capsys.readouterr().err
    assert "magic" in error
    assert "Traceback" not in error


def test_groups_of_methods():
    assert choose("peers") == [name for name, entry in METHODS.items() if entry.kind == PEER]
    assert choose("ekfac, sgoif") == ["sgoif", "ekfac"]
    assert choose("all") == list(METHODS)


@pytest.mark.usefixtures("few")
def test_examples_left_out_alone_and_new_labels_are_judged_where_asked_for(tmp_path: Path):
    out = tmp_path / "f.jsonl"
    plain = FidelitySettings(**{**SMALL, "left_out": "none", "brittle": 0}, model="linear", methods="trak-1,sgoif-head")
    run_fidelity(plain, out, "command", lambda message: None)
    more = replace(plain, alone=6, relabelled="1,2", changes=5, pairs=2)
    told: list[str] = []
    run_fidelity(more, out, "command", told.append)
    assert any("2 results asked for, 0 already in" in message for message in told)
    assert any("38 networks of the truth" in message for message in told)  # 2 of each of 1 + 6, 1 + 5 and 1 + 5 sets
    lines = KIND.read([out])
    before, after = ([line for line in lines if ("alone" in line["recipe"]) == asked] for asked in (False, True))
    assert len(before) == len(after) == 2
    assert "alone" not in before[0]["metrics"]
    assert not {"alone", "relabelled", "changes", "pairs"} & set(before[0]["recipe"])
    found = {line["method"]: line["metrics"] for line in after}
    assert found["sgoif-head"]["alone"]["changes"] == 6
    assert list(found["sgoif-head"]["relabelled"]) == ["1", "2"]
    assert found["sgoif-head"]["relabelled"]["1"]["predicted_from"] == "both labels"
    assert found["trak-1"]["relabelled"]["2"]["predicted_from"] == "given label"
    assert value_of(after[0], "alone") == after[0]["metrics"]["alone"]["spearman"]
    sizes = [part["spearman"] for part in after[0]["metrics"]["relabelled"].values()]
    assert value_of(after[0], "relabelled") == pytest.approx(np.mean(sizes))
    assert value_of(before[0], "alone") is value_of(before[0], "relabelled") is None
    assert "left out alone" in render(after, FidelityTableSettings(metric="alone,relabelled,left_out"))


@pytest.mark.parametrize("wrong", [{"alone": 101}, {"relabelled": "1,99"}])
@pytest.mark.usefixtures("few")
def test_more_changes_than_examples_are_refused_before_anything_is_trained(tmp_path: Path, monkeypatch, wrong):
    monkeypatch.setattr(runner, "train_sets", lambda *_: pytest.fail("trained"))
    with pytest.raises(SettingError, match="cannot be"):
        run_fidelity(FidelitySettings(**SMALL, **wrong), tmp_path / "f.jsonl", "command", lambda message: None)


def test_results_from_before_these_questions_existed_stay_valid():
    known = FidelitySettings(sets="digits", wrong_shares="0.1").jobs()[0].key("sgoif")
    assert known.recipe_id == "ed50f550b303"
    assert FidelitySettings(sets="mnist").jobs()[0].key("sgoif").recipe_id == "2ec98629c3b8"


def test_another_truth_is_another_folder_and_other_methods_are_not():
    def folder(**options):
        return FidelitySettings(**{**SMALL, **options}).jobs()[0].truth_id

    assert folder(methods="sgoif") == folder(methods="peers") == folder(subsets=9)
    assert len({folder(), folder(epochs=3), folder(queries=11), folder(seeds="1"), folder(wrong_shares="0.2")}) == 5
