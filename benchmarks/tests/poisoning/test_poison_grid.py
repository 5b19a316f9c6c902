"""`sgoif-bench poisoning`: what it writes, what it refuses, and that nothing finished is ever computed again."""

from __future__ import annotations

import json
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attack_cases import write_root

from sgoif.errors import SettingError
from sgoif_bench.cli import main as sgoif_bench
from sgoif_bench.journal import Journal
from sgoif_bench.poisoning.case import Case, Finding
from sgoif_bench.poisoning.grid import KIND
from sgoif_bench.poisoning.registry import METHODS, Method
from sgoif_bench.poisoning.run import main
from sgoif_bench.poisoning.runner import Runner
from sgoif_bench.poisoning.settings import PoisoningSettings
from sgoif_bench.poisoning.table import PoisoningTableSettings
from sgoif_bench.tables.layout import build, render

SMALL = ("--sets", "mnist", "--model", "small-cnn", "--epochs", "1", "--batch-size", "40", "--limit", "120")
CALLS: list[str] = []
HERE = "test_poison_grid"


def brightness(case: Case) -> Finding:
    """Bright images are poison."""
    CALLS.append(f"brightness {case.problem.seed}")
    light = case.problem.images.float().mean(dim=(1, 2, 3)).double().numpy()
    return Finding(light, np.argsort(-light)[:2], {"note": 1})


def closeness(case: Case) -> Finding:
    """What has the victims' answer is poison."""
    CALLS.append(f"closeness {case.problem.seed}")
    return Finding(np.isin(case.problem.labels, case.known().wanted).astype(np.float64))


STAND_INS = [
    Method("closeness", f"{HERE}:closeness", "Closeness", "a paper", True),
    Method("brightness", f"{HERE}:brightness", "Brightness", "a paper", False),
]


@pytest.fixture(scope="session")
def bars_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_root(tmp_path_factory.mktemp("bars"))


@pytest.fixture
def place(tmp_path: Path, bars_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in, with the data in `data` and stand-ins for the methods."""
    (tmp_path / "data").symlink_to(bars_root)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    CALLS.clear()
    methods = dict(METHODS)
    METHODS.clear()
    METHODS.update({method.name: method for method in STAND_INS})
    yield tmp_path
    METHODS.clear()
    METHODS.update(methods)


def bench(*arguments: str, attacks: str = "badnets-5", methods: str = "all") -> int:
    """The command with few epochs and no retraining; what is given again counts."""
    given = [
        "--data",
        "data",
        "--attacks",
        attacks,
        "--methods",
        methods,
        "--out",
        "r.jsonl",
        "--retrain",
        "none",
        *SMALL,
    ]
    return main([*given, *arguments], program="sgoif-bench poisoning")


def calls() -> list[str]:
    found = list(CALLS)
    CALLS.clear()
    return found


def results() -> dict[str, Any]:
    return {f"{line['method']} {line['attack']} {line['seed']}": line for line in KIND.read([Path("r.jsonl")])}


def test_a_line_says_everything(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--retrain", "all", "--known", "4") == 0
    streams = capsys.readouterr()
    line = results()["brightness badnets-5 0"]
    assert line["command"].startswith("sgoif-bench poisoning --data DATA --attacks badnets-5")
    assert str(place) not in json.dumps(line)
    assert {"torch", "sgoif"} <= set(line["versions"])
    assert line["machine"]["device_type"] == "cpu"
    wanted = {"model": "small-cnn", "known": 4, "attack_rate": 0.05, "attack_target": None, "limit": 120}
    assert wanted.items() <= line["recipe"].items()
    assert (line["classes"], line["examples"] + line["held_out"], line["tested"]) == (10, 120, 60)
    assert 0 < line["poison"] <= 6
    assert line["attacked"] == 60 - 6 - 4
    assert line["wanted"] in range(10)
    assert (line["setting"], line["shared"], line["removed_by"]) == ("unknown", True, "own rule")
    assert line["details"] == {"note": 1}
    metrics = line["metrics"]
    assert metrics["selected"] == 2
    assert {"success_before", "success_after", "accuracy_before", "accuracy_after", "aupr"} <= set(metrics)
    assert metrics["accuracy_after"] is not None
    assert set(line["without_poison"]) == {"attack_success", "accuracy"}
    assert line["retrained"]
    assert line["memory"]["peak_bytes"] > 2**20
    assert results()["closeness badnets-5 0"]["removed_by"] == "1.5 × the number of poisoned examples"
    assert "| Closeness |" in streams.out
    assert "**mnist, nothing known, AUPR**" in streams.out
    assert "AUPR closeness" in streams.err


def test_what_is_finished_is_not_computed_again(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(methods="brightness") == 0
    assert calls() == ["brightness 0"]
    assert bench("--seeds", "0,1") == 0
    assert calls() == ["closeness 0", "closeness 1", "brightness 1"]
    before = Path("r.jsonl").read_bytes()
    capsys.readouterr()
    assert bench("--seeds", "1,0", "--json") == 0
    assert calls() == []
    assert Path("r.jsonl").read_bytes() == before
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["results"]) == 4
    for other in (("--learning-rate", "0.3"), ("--known", "3")):
        assert bench(*other, methods="brightness") == 0
    assert bench(methods="brightness", attacks="badnets-6") == 0
    assert calls() == ["brightness 0"] * 3, "another recipe, other victims or another attack is another cell"
    assert bench("--retrain", "closeness", methods="brightness") == 0
    assert calls() == [], "that is another method's"
    assert bench("--retrain", "all", methods="brightness") == 0
    assert calls() == ["brightness 0"], "a result without a retraining is not enough"
    assert bench(methods="brightness") == 0
    assert calls() == []


def test_results_repeat(place: Path) -> None:
    assert bench(methods="brightness", attacks="blended-5") == 0
    first = results()["brightness blended-5 0"]["metrics"]
    Path("r.jsonl").unlink()
    assert bench(methods="brightness", attacks="blended-5") == 0
    assert results()["brightness blended-5 0"]["metrics"] == first


def test_an_interrupted_run_goes_on_where_it_stopped(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = brightness

    def interrupted(case: Case) -> Finding:
        if case.problem.seed == 1:
            raise KeyboardInterrupt
        return real(case)

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[HERE], "brightness", interrupted)
        assert bench("--seeds", "0,1", methods="brightness") == 130
    assert "1 of 2 trainings are kept" in capsys.readouterr().err
    calls()
    assert bench("--seeds", "0,1", methods="brightness") == 0
    assert calls() == ["brightness 1"]


def test_without_an_attack_only_false_alarms_are_counted(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(attacks="none") == 0
    assert calls() == ["brightness 0"], "nobody has victims"
    line = results()["brightness none 0"]
    assert line["poison"] == 0
    assert line["metrics"]["aupr"] is None
    assert line["metrics"]["selected"] == 2
    assert line["metrics"]["success_before"] is None
    streams = capsys.readouterr()
    assert "brightness removes 2" in streams.err
    assert "**mnist, nothing known, removed**" in streams.out
    assert bench(attacks="none", methods="closeness") == 2
    assert "nothing is left to do" in capsys.readouterr().err


def test_a_method_that_fails_is_tried_again(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(case: Case) -> Finding:
        raise SettingError("no luck today")

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[HERE], "brightness", broken)
        assert bench() == 1
    assert "FAILED mnist badnets-5 brightness seed 0: no luck today" in capsys.readouterr().err
    assert set(results()) == {"closeness badnets-5 0"}
    calls()
    assert bench() == 0
    assert calls() == ["brightness 0"]


def test_a_runner_in_another_process_finds_the_same(place: Path) -> None:
    settings = PoisoningSettings(
        data="data", sets="mnist", attacks="label-flip-5", methods="brightness", model="small-cnn", epochs=1,
        batch_size=40, limit=120, retrain="none",
    )  # fmt: skip
    (job,) = settings.jobs()
    runner = Runner(settings, "a command", torch.device("cpu"), lambda message: None)
    (line,) = runner.do(job).lines
    sent, work = pickle.loads(pickle.dumps((runner.moved(torch.device("cpu")), job)))
    (again,) = sent.do(work).lines
    assert KIND.key_of(line) == KIND.key_of(again)
    assert line["metrics"] == again["metrics"]
    assert line["attack_details"] == {"each": 2}
    assert line["attacked"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sets", "cifar100"], "no data set 'cifar100'; choose from digits, mnist"),
        (["--attacks", "badnet-1"], "no attack 'badnet-1'; choose from badnets, blended"),
        (["--attacks", ","], "--attacks is empty"),
        (["--attacks", "clean-label-60"], "needs 72 examples of class"),
        (["--methods", "oracle"], "oracle; choose from closeness, brightness"),
        (["--seeds", "a"], "--seeds.*'a'"),
        (["--known", "0"], "known = 0"),
        (["--retrain", "everything"], "no method everything"),
        (["--known", "60"], "none is left to measure success on"),
        (["--workers", "0"], "workers = 0"),
        (["--epochs", "0"], "epochs = 0"),
        (["--test-limit", "1"], "test_limit = 1"),
        (["--anchors", "120"], "anchors = 120"),
        (["--model", "resnet1"], "resnet1.*tiny-cnn"),
        (["--model", "digits-net"], "digits-net is for 1×8×8"),
        (["--image", "4"], "size = 4"),
        (["--data", "nowhere"], "nowhere.*not a folder"),
        (["--data", "empty"], r"mnist \(train\) was not found"),
        (["--out", "empty"], "cannot be written"),
        (["--out", "foreign.jsonl"], "line 1 of foreign.jsonl is not a result of `sgoif-bench poisoning`"),
        (["--device", "cuda"], "no CUDA device"),
    ],
)
def test_mistakes_get_a_sentence(
    arguments: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    Path("foreign.jsonl").write_text('{"set": "mnist", "metrics": {}, "recipe": {}}\n')
    late = arguments[-1] in ("clean-label-60", "60")  # found when the job begins
    assert bench(*arguments) == (1 if late else 2)
    streams = capsys.readouterr()
    assert late or streams.out == ""
    assert "Traceback" not in streams.err
    assert re.search(message, streams.err), streams.err
    assert calls() == []


def test_a_second_writer_is_kept_out(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal(Path("r.jsonl"), KIND):
        assert bench() == 2
    assert "another run is writing" in capsys.readouterr().err


# tables


def line(method: str, attack: str = "badnets-1", seed: int = 0, recipe_id: str = "a", **metrics: Any) -> dict[str, Any]:
    return {
        "set": "mnist",
        "attack": attack,
        "method": method,
        "seed": seed,
        "recipe_id": recipe_id,
        "recipe": {"epochs": 3, "attack_rate": 0.01},
        "setting": "known" if method == "tracin" else "unknown",
        "shared": True,
        "metrics": metrics,
        "seconds": 2.0,
        "memory": {"peak_bytes": 2**21},
    }


def test_a_table_for_each_setting() -> None:
    lines = [line("tracin", aupr=0.5), line("spectral", aupr=0.25), line("random", aupr=0.125)]
    lines += [line("spectral", "none", aupr=None, selected=7)]
    shown = render(lines, PoisoningTableSettings())
    assert "**mnist, victims known, AUPR**" in shown
    assert "| spectral signatures | **25.0** | 1 |" in shown
    assert "no attack" not in shown
    assert "| spectral signatures | **7** |" not in shown
    counted = render(lines, PoisoningTableSettings("selected", columns="metric", by="attack"))
    assert "**no attack" in counted
    assert "| spectral signatures | 7 | 1 |" in counted


def test_several_metrics_as_columns_for_one_attack() -> None:
    lines = [line("spectral", seed=seed, aupr=0.2 + seed / 10, success_after=0.5) for seed in (0, 1)]
    (table,) = build(lines, PoisoningTableSettings("aupr,success_after,memory,seconds", columns="metric", by="set"))
    shown = render(lines, PoisoningTableSettings("aupr,success_after,memory,seconds", columns="metric", by="set"))
    assert [column[0] for column in table.columns] == ["aupr", "success_after", "seconds", "memory"]
    assert "| spectral signatures | 25.0 ± 7.1 | 50.0 ± 0.0 | 2.0 ± 0.0 † | 2 ± 0 † | 2 |" in shown


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "f1"}, "no metric f1"),
        ({"rows": ""}, "each need a field"),
        ({"rows": "attack"}, "cannot stand in --rows and in --columns"),
        ({"format": "word"}, "no format 'word'"),
    ],
)
def test_tables_that_cannot_be_made(settings: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        PoisoningTableSettings(**settings)


def test_results_of_other_recipes_are_not_mixed() -> None:
    lines = [line("spectral", aupr=0.5), line("random", recipe_id="b", aupr=0.1)]
    with pytest.raises(SettingError, match="different recipes"):
        render(lines, PoisoningTableSettings())
    fine = [line("spectral", aupr=0.5), line("spectral", "blended-1", recipe_id="b", aupr=0.1)]
    assert "blended trigger 1%" in render(fine, PoisoningTableSettings())


def test_the_command_knows_its_result_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ours, labels = tmp_path / "p.jsonl", tmp_path / "l.jsonl"
    ours.write_text(json.dumps(line("spectral", aupr=0.5)) + "\n")
    other = {**line("loss", aupr=0.5), "noise": "symmetric-20"}
    del other["attack"]
    labels.write_text(json.dumps(other) + "\n")
    assert sgoif_bench(["table", str(ours)]) == 0
    assert "**mnist, nothing known, AUPR**" in capfd.readouterr().out
    assert sgoif_bench(["table", str(ours), "--json", "--metric", "aupr"]) == 0
    (table,) = json.loads(capfd.readouterr().out)["tables"]
    assert table["cells"][0]["mean"] == 0.5
    assert sgoif_bench(["table", str(labels)]) == 0
    assert "mnist, AUPR" in capfd.readouterr().out
    assert sgoif_bench(["table", str(ours), str(labels)]) == 2
    assert "do not go into one table" in capfd.readouterr().err
    assert sgoif_bench(["poisoning", "--attacks", "x"]) == 2
