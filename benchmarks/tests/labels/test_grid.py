"""`sgoif-bench labels`: what it writes, and what it refuses."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labels_stand_ins import bench, calls, duo, results

from sgoif.errors import MissingExtraError, SettingError
from sgoif_bench.cli import main
from sgoif_bench.jobs import Result
from sgoif_bench.labels import grid
from sgoif_bench.labels.grid import DIGITS, KIND, measure
from sgoif_bench.labels.problem import Outcome, Problem
from sgoif_bench.labels.recipes import Training
from sgoif_bench.labels.registry import METHODS, is_rival
from sgoif_bench.memory import Peak
from sgoif_bench.metrics import average_precision, top_kendall
from sgoif_bench.progress import Progress
from sgoif_bench.result_texts import rounded
from sgoif_bench.workers import device_of


def test_a_line_says_what_was_found_and_where_it_comes_from(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--data", str(place)) == 0
    found = results()
    assert set(found) == {"alpha-0", "beta-0", "first-0", "second-0", "first-no-gate-0"}
    line = found["alpha-0"]
    assert line["command"].startswith("sgoif-bench labels --methods alpha,")
    assert str(place) not in json.dumps(line)
    assert {"torch", "sgoif"} <= set(line["versions"])
    assert line["machine"]["device_type"] == "cpu"
    expected = {"model": "digits-net", "epochs": 2, "batch_size": 64, "anchors": 12, "limit": 60, "mirror": False}
    assert expected.items() <= line["recipe"].items()
    assert (line["set"], line["noise"], line["seed"]) == ("digits", "symmetric-20", 0)
    assert (line["examples"], line["wrong"], line["judged"], line["classes"]) == (60, 12, 60, 10)
    assert (line["trainings"], line["shared"], line["trains_robustly"]) == (2.0, False, True)
    assert 0 <= line["seconds"] < 5
    assert line["memory"]["peak_bytes"] > 2**20
    named = {*grid.DETECTION, *grid.FLAGS, *grid.CLAIMS, "flagged_share", "top_kendall", "found_at_share"}
    named |= {grid.PRODUCTS}
    assert set(line["metrics"]) == named
    assert line["metrics"][grid.PRODUCTS] == 0.5
    assert 0 < line["metrics"]["f1"] < 1
    assert found["beta-0"]["metrics"]["f1"] is None
    assert len(line["curve"]) == 101
    assert line["removal"] is None
    assert found["first-0"]["shared"]
    assert [set(record) for record in found["first-0"]["details"]["epochs"]] == [
        {"epoch", "residual", "confidence", "aupr", "p_at_1", "top_kendall"}
    ] * 3
    streams = capsys.readouterr()
    assert "**digits, AUPR**" in streams.out
    assert "[3/3]" in streams.err
    assert "s left" in streams.err
    assert "digits symmetric-20 alpha seed 0: working" in streams.err


def test_what_is_finished_is_not_computed_again(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(methods="alpha") == 0
    assert calls() == ["alpha"]
    assert bench("--seeds", "0,1") == 0
    assert sorted(calls()) == ["alpha", "beta", "beta", "duo", "duo"]
    before = Path("r.jsonl").read_bytes()
    capsys.readouterr()
    assert bench("--seeds", "1,0") == 0
    assert calls() == []
    assert Path("r.jsonl").read_bytes() == before
    assert "8 results asked for, 8 already" in capsys.readouterr().err
    assert bench("--learning-rate", "0.3", methods="alpha") == 0
    assert calls() == ["alpha"]
    assert len({line["recipe_id"] for line in KIND.read([Path("r.jsonl")])}) == 2


def test_results_of_a_former_form_are_kept_apart(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(methods="alpha,beta") == 0
    before = Path("r.jsonl").read_text()
    Path("r.jsonl").write_text(before.replace('"form": 1, ', ""))  # as it was written before methods had a form
    assert bench(methods="alpha,beta") == 0
    assert sorted(calls()) == ["alpha", "beta"], "what has not changed is not computed again"
    METHODS["alpha"] = replace(METHODS["alpha"], form=2)
    assert bench(methods="alpha,beta") == 0
    assert calls() == ["alpha"]
    lines = KIND.read([Path("r.jsonl")])
    assert sorted(line["method"] for line in lines) == ["alpha", "alpha, former", "beta"]
    assert is_rival("alpha, former")
    capsys.readouterr()
    assert main(["table", "r.jsonl"]) == 0
    shown = capsys.readouterr().out
    assert "| Alpha " in shown
    assert "| Alpha, former " in shown


def test_solo_trains_for_every_method_and_is_kept_beside_the_shared_result(place: Path) -> None:
    assert bench() == 0
    calls()
    assert bench("--solo") == 0
    assert sorted(calls()) == ["first", "second"]
    shared = {(line["method"], line["shared"]) for line in KIND.read([Path("r.jsonl")])}
    assert {("first", True), ("first", False), ("second", True), ("second", False), ("alpha", False)} <= shared
    assert bench("--solo") == bench() == 0
    assert calls() == []


def test_one_object_on_request(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(methods="beta") == 0
    assert bench(methods="first,second") == 0
    capsys.readouterr()
    assert bench("--json", methods="first") == 0
    printed = json.loads(capsys.readouterr().out)
    assert {line["method"] for line in printed["results"]} == {"first", "first-no-gate"}
    assert printed["failed"] == []
    assert printed["command"].startswith("sgoif-bench labels")


def test_a_failure_is_told_and_tried_again(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench("--json", methods="broken,beta,alpha") == 1
    streams = capsys.readouterr()
    assert "FAILED digits symmetric-20 broken seed 0" in streams.err
    assert "RuntimeError: broken on purpose" in streams.err
    (failure,) = json.loads(streams.out)["failed"]
    assert (failure["method"], failure["reason"]) == ("broken", "RuntimeError: broken on purpose")
    assert set(results()) == {"alpha-0", "beta-0"}
    calls()
    monkeypatch.setenv("REPAIRED", "1")
    assert bench(methods="broken,beta,alpha") == 0
    assert calls() == ["broken"]


def test_a_family_that_forgets_a_method_or_returns_nonsense(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["labels_stand_ins"]
    whole = duo

    def partly(problem: Problem, tell: Any) -> dict[str, Outcome]:
        return {"first": whole(problem, tell)["first"], "first-no-gate": Outcome(np.zeros(3))}

    monkeypatch.setattr(module, "duo", partly)
    assert bench(methods="first,second") == 1
    messages = capsys.readouterr().err
    assert "second seed 0: duo returned no outcome" in messages
    assert "scores of shape (3,) came back for 60 examples" in messages
    assert set(results()) == {"first-0"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sets", "digits,cifar11"], "cifar11.*digits, mnist, fashion-mnist, cifar10"),
        (["--methods", "alpha,gamma"], "gamma.*alpha, beta, broken.*groups all, ablations, heavy, simple"),
        (["--methods", ","], "empty"),
        (["--noises", "symmetric-20,symetric-20"], "symetric-20.*class-dependent-RATE"),
        (["--sets", "cifar10"], "--data ROOT"),
        (["--sets", "digits,cifar10", "--data", "nowhere"], "nowhere"),
        (["--sets", "cifar10", "--data", "."], "cifar-10-batches-bin"),
        (["--seeds", "0,x"], "--seeds.*'x'"),
        (["--seeds", ""], "--seeds is empty"),
        (["--model", "resnet1"], "resnet1.*resnet9, resnet18"),
        (["--model", "digits-net", "--image", "16"], "digits-net is for"),
        (["--epochs", "0"], "epochs = 0"),
        (["--learning-rate", "0"], "learning_rate"),
        (["--anchors", "60"], "anchors = 60"),
        (["--limit", "5000", "--anchors", "2000"], "anchors = 2000.*digits has"),
        (["--limit", "1"], "limit = 1"),
        (["--workers", "0"], "workers"),
        (["--remove", "1"], "remove"),
        (["--remove", "-0.1"], "remove"),
        (["--noises", "human-worst", "--human", "none.npz"], "none.npz"),
        (["--noises", "human-worst"], "--human FILE"),
        (["--out", "folder"], "cannot be written"),
        (["--out", "foreign.jsonl"], "line 1 of foreign.jsonl is not a result"),
        (["--device", "cuda"], "no CUDA device"),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(
    arguments: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    Path("folder").mkdir()
    Path("foreign.jsonl").write_text('{"a": 1}\n')
    assert bench(*arguments) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "Traceback" not in streams.err
    assert re.search(message, streams.err), streams.err
    assert calls() == []
    assert not Path("r.jsonl").exists()


def test_a_missing_package_is_told_before_anything_is_trained(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench(methods="beta") == 0
    monkeypatch.setitem(grid.NEEDS, "beta", ("not_there", "datalab"))
    assert bench(methods="beta,alpha") == 0, "what stands in the file needs nothing"
    calls()
    assert bench("--seeds", "0,1", methods="alpha,beta") == 2
    assert "the method beta needs the package 'not_there'" in capsys.readouterr().err
    assert calls() == []
    assert set(results()) == {"beta-0", "alpha-0"}


def test_confident_learning_needs_cleanlab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "find_spec", lambda package: None)
    jobs = grid.plan({"digits": Training()}, ["symmetric-20"], ["loss", "confident-learning"], [0])
    with pytest.raises(MissingExtraError, match=r"confident-learning needs the package 'cleanlab'.*sgoif\[datalab\]"):
        grid.check_packages(jobs)
    grid.check_packages(jobs[:1])


def test_without_wrong_labels_only_the_flags_say_something(place: Path) -> None:
    assert bench("--noises", "none", methods="alpha,first,second") == 0
    metrics = results()["alpha-0"]["metrics"]
    assert metrics["aupr"] is None
    assert metrics["flagged_share"] > 0
    assert results()["alpha-0"]["curve"] is None


def test_training_again_without_what_is_suspicious(place: Path) -> None:
    small = ["--limit", "400", "--epochs", "3", "--anchors", "50"]
    assert bench(*small, methods="alpha,beta") == 0
    calls()
    assert bench(*small, "--remove", "0.1", methods="alpha,beta") == 0
    assert sorted(calls()) == ["alpha", "beta"], "a line without the retraining is not enough"
    by_flags, by_share = results()["alpha-0"]["removal"], results()["beta-0"]["removal"]
    assert (by_flags["by"], by_share["by"]) == ("flags", "top share")
    assert by_share["removed"] == 40
    assert by_flags["removed"] == round(results()["alpha-0"]["metrics"]["flagged_share"] * 400)
    assert 0.2 < by_share["test_accuracy"] <= 1, "three epochs on digits are far better than chance"
    assert bench(*small, "--remove", "0.1", methods="alpha,beta") == 0
    assert bench(*small, methods="alpha,beta") == 0
    assert calls() == []
    assert bench(*small, "--remove", "0", methods="beta") == 0
    everything = results()["beta-0"]["removal"]
    assert everything["removed"] == 0
    assert everything["test_accuracy"] > 0.2, "a network to compare with, trained on all of it"


def test_curves_and_details_are_written_with_few_digits() -> None:
    given = {"epochs": [{"epoch": 12345, "aupr": 0.123456}], "none": None, "flag": True, "name": "x", "large": 123456.0}
    assert rounded(given, DIGITS) == {
        "epochs": [{"epoch": 12345, "aupr": 0.1235}], "none": None, "flag": True, "name": "x", "large": 123500.0
    }  # fmt: skip
    wrong = np.array([True, False, False] * 3)
    judged = measure(wrong, Outcome(np.linspace(1, 0, 9), details={"third": 1 / 3}))
    assert judged["details"] == {"third": 0.3333}
    assert judged["curve"][-1] == 0.4286, "three of the first seven"
    assert judged["metrics"]["aupr"] == pytest.approx(1 / 3 * (1 + 2 / 4 + 3 / 7), abs=1e-12), "in full"


def test_judging_an_outcome() -> None:
    wrong = np.array([True, False, True, False, False, False])
    ranks = np.array([[1.0, 2, 3, 4, 5, 6], [6.0, 1, 5, 2, 3, 4], [6.0, 1, np.nan, 2, 3, 4]])
    line = measure(wrong, Outcome(ranks[1], details={"ranks_over_epochs": ranks, "note": 1}))
    assert line["metrics"]["aupr"] == 1.0
    assert line["details"]["note"] == 1
    records = line["details"]["epochs"]
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert [record["aupr"] for record in records] == pytest.approx(
        [average_precision(wrong, np.nan_to_num(row, nan=-np.inf)) for row in ranks], abs=1e-4
    )
    assert records[0]["top_kendall"] is None
    assert records[1]["top_kendall"] == pytest.approx(top_kendall(ranks[0], ranks[1]), abs=1e-4)
    unseen = np.vstack([np.full((2, 1), -np.inf), [[np.nan]]])
    wider = Outcome(np.append(ranks[1], 9.0), details={"ranks_over_epochs": np.hstack([ranks, unseen])})
    again = measure(np.append(wrong, True), wider)["details"]["epochs"]
    assert [record["aupr"] for record in again] == [record["aupr"] for record in records], "never ranked, not judged"
    known = np.array([True, True, False, False, False, False])
    assert measure(wrong, Outcome(-ranks[1], flagged=wrong), known)["metrics"]["auroc"] == 0.0
    assert measure(wrong, Outcome(-ranks[1], flagged=wrong), known)["metrics"]["f1"] == 1.0
    with pytest.raises(SettingError, match="does not go with 1 epochs"):
        measure(wrong, Outcome(ranks[1], details={"ranks_over_epochs": ranks, "epochs": [{"epoch": 1}]}))


def test_judging_what_a_method_claims() -> None:
    true = np.array([0, 1, 2, 0])
    wrong = np.array([True, True, False, False])
    claims = Outcome(
        np.array([0.9, 0.8, 0.2, 0.1]),
        probability=np.array([1.0, 0.5, 0.5, 0.0]),
        suggested=np.array([0, 2, 2, 0]),
        noise_rate=(0.4, 0.3, 0.6),
    )
    metrics = measure(wrong, claims, true=true)["metrics"]
    assert metrics["suggested_right"] == 0.5
    assert metrics["noise_rate_error"] == pytest.approx(0.1)
    assert (metrics["noise_rate_low"], metrics["noise_rate_high"]) == (0.3, 0.6)
    assert metrics["calibration_error"] == pytest.approx(0.0), "of the two at 0.5 one is wrong"
    silent = measure(wrong, Outcome(claims.suspicion), true=true)["metrics"]
    assert all(silent[name] is None for name in grid.CLAIMS)


def test_the_time_left_comes_from_jobs_of_the_same_kind() -> None:
    def job(family: str) -> grid.Job:
        return grid.Job("digits", "none", 0, family, (family,), Training())

    told: list[str] = []
    progress = Progress([job("mixup"), job("sce"), job("mixup"), job("sce")], workers=1, tell=told.append)
    progress.report(progress.jobs[0], Result(seconds=10.0))
    assert "about 30.0 s left" in told[-1]
    progress.report(progress.jobs[1], Result(seconds=40.0))
    assert "about 50.0 s left" in told[-1]
    progress.report(progress.jobs[2], Result(seconds=10.0))
    progress.report(progress.jobs[3], Result(seconds=100.0, failures={"sce": "it broke"}))
    assert "left" not in told[-2]
    assert "took 2 min" in told[-2]
    assert told[-1] == "FAILED digits none sce seed 0: it broke"


def test_memory_is_that_of_the_run_and_not_of_an_earlier_one() -> None:
    device = torch.device("cpu")
    if Peak(device).since != "start of the training":
        pytest.skip("this system does not forget a peak")
    before = Peak(device)
    large = np.ones(2**27, dtype=np.uint8)
    assert large.sum() == 2**27
    high = before.read()["peak_bytes"]
    del large
    after = Peak(device).read()
    assert after["peak_bytes"] < high - 2**26
    assert after["kind"] == "resident"


def test_gpus_are_dealt_out_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of(number, torch.device("cuda")).index for number in range(4)] == [0, 1, 0, 1]
    assert device_of(3, torch.device("cpu")) == torch.device("cpu")
