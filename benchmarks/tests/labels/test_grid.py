"""`sgoif-bench labels`: what it writes, what it refuses, and that nothing finished is ever computed again.

This file is also a program: run as a script it is the command with the stand-in methods below in place of the real ones
(its worker processes import it too, and find the same stand-ins).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sgoif.core.provenance import rounded
from sgoif.errors import MissingExtraError, SettingError
from sgoif_bench import journal
from sgoif_bench.jobs import Result
from sgoif_bench.journal import Journal
from sgoif_bench.labels import grid, kept
from sgoif_bench.labels.datasets import LabelledData
from sgoif_bench.labels.grid import DIGITS, KIND, key_of, measure, read_results
from sgoif_bench.labels.problem import Outcome, Problem
from sgoif_bench.labels.recipes import Training
from sgoif_bench.labels.registry import FAMILIES, METHODS, Method
from sgoif_bench.labels.run import main
from sgoif_bench.memory import Peak
from sgoif_bench.metrics import average_precision, top_kendall
from sgoif_bench.progress import Progress
from sgoif_bench.workers import device_of

SMALL = ("--limit", "60", "--epochs", "2", "--noises", "symmetric-20")
posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")


def guess(problem: Problem, name: str) -> np.ndarray:
    """Scores that depend on seed, labels and method, and on nothing else. Every call leaves a trace."""
    labels = zlib.crc32(problem.labels.tobytes())
    with open(os.environ["CALLS"], "a") as file:
        file.write(f"{name} {problem.seed} {labels} {os.getpid()}\n")
    for number, line in enumerate(Path(os.environ["CALLS"]).read_text().splitlines(), start=1):
        if os.environ.get("DIE_AT") == str(number) and line.startswith(f"{name} {problem.seed} {labels}"):
            os.kill(os.getpid(), signal.SIGKILL)
    return np.random.default_rng([labels, problem.seed, len(name)]).random(len(problem))


def alpha(problem: Problem, tell: Any) -> Outcome:
    tell("working")
    scores = guess(problem, "alpha")
    return Outcome(scores, flagged=scores > 0.8, trainings=2.0, details={"curvature_products_per_step": 0.5})


def beta(problem: Problem, tell: Any) -> Outcome:
    scores = guess(problem, "beta")
    if "WAIT" in os.environ:
        time.sleep(120)
    return Outcome(scores)


def broken(problem: Problem, tell: Any) -> Outcome:
    scores = guess(problem, "broken")
    if "REPAIRED" not in os.environ:
        raise RuntimeError("broken on purpose")
    return Outcome(scores)


def first(problem: Problem, tell: Any) -> Outcome:
    return Outcome(guess(problem, "first"))


def second(problem: Problem, tell: Any) -> Outcome:
    return Outcome(guess(problem, "second"))


def duo(problem: Problem, tell: Any) -> dict[str, Outcome]:
    scores = guess(problem, "duo")
    ranks = np.stack([scores, scores**2, -scores])
    epochs = [{"epoch": number, "residual": 1 / number, "confidence": 0.1 * number} for number in (1, 2, 3)]
    return {
        "first": Outcome(scores, details={"ranks over epochs": ranks, "epochs": epochs}),
        "second": Outcome(1 - scores),
        "first-no-gate": Outcome(scores[::-1]),
    }


STAND_INS = [
    Method("alpha", "test_grid:alpha", "Alpha", "a paper", trains_robustly=True),
    Method("beta", "test_grid:beta", "Beta", "a paper"),
    Method("broken", "test_grid:broken", "Broken", "a paper"),
    Method("first", "test_grid:first", "First", "a paper", family="duo"),
    Method("second", "test_grid:second", "Second", "a paper", family="duo"),
]
WORKING = "alpha,beta,first,second"


def install() -> None:
    METHODS.clear()
    METHODS.update({method.name: method for method in STAND_INS})
    FAMILIES.clear()
    FAMILIES["duo"] = "test_grid:duo"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, and the stand-ins in place of the real methods."""
    methods, families = dict(METHODS), dict(FAMILIES)
    install()
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    METHODS.clear()
    METHODS.update(methods)
    FAMILIES.clear()
    FAMILIES.update(families)


def tiny(name: str, root: str | None, *, limit: int, **options: Any) -> LabelledData:
    """A data set that needs no scikit-learn, whose import takes longer than the test."""
    images = torch.arange(limit * 64).remainder(251).to(torch.uint8).view(limit, 1, 8, 8)
    return LabelledData(name, images, np.arange(limit) % 10, tuple("0123456789"), np.arange(limit))


@pytest.fixture
def quick(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same with the data that the command has when this file is run as a program."""
    monkeypatch.setattr(kept, "load", tiny)
    return place


def bench(*arguments: str, methods: str = WORKING) -> int:
    return main(["--methods", methods, "--out", "r.jsonl", *SMALL, *arguments], program="sgoif-bench labels")


def calls() -> list[str]:
    """The methods that were run, in this process or another, since this was last asked."""
    path = Path(os.environ["CALLS"])
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [line.split()[0] for line in lines]


def results() -> dict[str, Any]:
    return {f"{line['method']}-{line['seed']}": line for line in read_results([Path("r.jsonl")])}


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
    assert len({line["recipe_id"] for line in read_results([Path("r.jsonl")])}) == 2


def test_solo_trains_for_every_method_and_is_kept_beside_the_shared_result(place: Path) -> None:
    assert bench() == 0
    calls()
    assert bench("--solo") == 0
    assert sorted(calls()) == ["first", "second"]
    shared = {(line["method"], line["shared"]) for line in read_results([Path("r.jsonl")])}
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
    module = sys.modules["test_grid"]
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


def test_a_torn_line_is_ignored_and_repaired(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench() == 0
    whole = Path("r.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    assert [json.loads(line)["method"] for line in lines][-2:] == ["first", "second"], "ablations come first"
    calls()
    for length in (1, 40, len(lines[-1]) - 2):
        Path("r.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:length])
        told: list[str] = []
        assert len(read_results([Path("r.jsonl")], told.append)) == len(lines) - 1
        assert "incomplete" in told[0]
        assert bench() == 0
        assert calls() == ["duo"]
        assert "it is removed" in capsys.readouterr().err
        repaired = Path("r.jsonl").read_bytes()
        assert repaired.startswith(b"".join(lines[:-1]))
        assert len(repaired.splitlines()) == len(lines)
        assert [key_of(json.loads(line)) for line in repaired.splitlines()] == [key_of(json.loads(x)) for x in lines]
    Path("r.jsonl").write_bytes(whole[:-1])
    assert bench() == 0
    assert calls() == []
    assert Path("r.jsonl").read_bytes() == whole


def test_a_write_that_fails_leaves_nothing_behind(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench(methods="alpha") == 0
    before, real = Path("r.jsonl").read_bytes(), os.write

    def full(file: int, content: bytes) -> int:
        if len(content) < 100:
            raise OSError(28, "No space left on device", "r.jsonl")
        return real(file, content[:-50])

    monkeypatch.setattr(journal.os, "write", full)
    assert bench(methods="beta") == 2
    monkeypatch.undo()
    assert Path(place / "r.jsonl").read_bytes() == before


@posix
def test_a_second_writer_is_kept_out(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal(Path("r.jsonl"), KIND):
        assert bench() == 2
    assert "another run is writing" in capsys.readouterr().err
    assert bench() == 0


def start(*arguments: str, methods: str = WORKING, **environment: str) -> subprocess.Popen[str]:
    source = str(Path(kept.__file__).resolve().parents[3])
    here = str(Path(__file__).resolve().parent)
    command = [sys.executable, __file__, "--methods", methods, "--out", "r.jsonl", *SMALL, *arguments]
    variables = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{here}", "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def expected(place: Path) -> dict[str, Any]:
    """What an undisturbed run finds."""
    assert main(["--methods", WORKING, "--out", "whole.jsonl", *SMALL, "--seeds", "0,1"]) == 0
    calls()
    return {f"{line['method']}-{line['seed']}": line["metrics"] for line in read_results([place / "whole.jsonl"])}


def found() -> dict[str, Any]:
    return {name: line["metrics"] for name, line in results().items()}


@posix
def test_killed_while_training_and_while_writing(quick: Path) -> None:
    wanted = expected(quick)
    killed = start("--seeds", "0,1", DIE_AT="4")
    _, messages = killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL, messages
    assert calls() == ["alpha", "beta", "duo", "alpha"]
    assert len(results()) == 5
    torn = start("--seeds", "0,1", DIE_IN_WRITE="2")
    _, messages = torn.communicate(timeout=120)
    assert torn.returncode == -signal.SIGKILL, messages
    assert calls() == ["alpha", "beta"]
    assert not Path("r.jsonl").read_bytes().endswith(b"\n")
    assert bench("--seeds", "0,1") == 0
    assert calls() == ["beta", "duo"]
    assert found() == wanted


@posix
def test_workers_share_the_jobs_and_one_that_dies_is_replaced(quick: Path) -> None:
    wanted = expected(quick)
    process = start("--seeds", "0,1", "--workers", "2", DIE_AT="2")
    _, messages = process.communicate(timeout=180)
    assert process.returncode == 1, messages
    assert "its process died (signal 9)" in messages
    pids = {line.split()[3] for line in Path(os.environ["CALLS"]).read_text().splitlines()}
    assert len(pids) >= 2
    assert str(process.pid) not in pids
    assert sorted(calls()) == ["alpha", "alpha", "beta", "beta", "duo", "duo"]
    assert 5 <= len(results()) < len(wanted)
    assert {name: found()[name] for name in found()} == {name: wanted[name] for name in found()}
    assert bench("--seeds", "0,1") == 0
    assert len(calls()) == 1
    assert found() == wanted


def wait_for(condition: Any, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -signal.SIGKILL), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_a_parent_that_is_stopped_takes_its_workers_along(quick: Path, number: signal.Signals, code: int) -> None:
    trace = Path(os.environ["CALLS"])
    process = start("--workers", "2", methods="beta,alpha", WAIT="1")
    try:
        wait_for(lambda: trace.exists() and len(trace.read_text().splitlines()) == 2 and "alpha-0" in names())
        workers = [int(line.split()[3]) for line in trace.read_text().splitlines()]
        process.send_signal(number)
        _, messages = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, messages
    assert "Traceback" not in messages
    if code == 130:
        assert "1 of 2 trainings are kept; the same command goes on from there" in messages
    wait_for(lambda: not any(is_alive(pid) for pid in workers), seconds=30)
    calls()
    assert bench(methods="beta,alpha") == 0
    assert calls() == ["beta"]


def test_ctrl_c_keeps_what_is_finished(
    quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(problem: Problem, tell: Any) -> Outcome:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules["test_grid"], "beta", interrupted)
        assert bench() == 130
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "1 of 3 trainings are kept; the same command goes on from there" in streams.err
    assert calls() == ["alpha"]
    assert bench() == 0
    assert calls() == ["beta", "duo"]


def names() -> list[str]:
    return list(results()) if Path("r.jsonl").exists() else []


def die_in_write(number: int) -> None:
    """Make the n-th write to the result file stop half way, with the process."""
    writes, real = [], os.write

    def write(file: int, content: bytes) -> int:
        writes.append(content)
        if len(writes) == number:
            real(file, content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(file, content)

    journal.os.write = write  # type: ignore[attr-defined]


if __name__ in ("__main__", "__mp_main__"):
    install()
    kept.load = tiny  # type: ignore[assignment]
if __name__ == "__main__":
    if "DIE_IN_WRITE" in os.environ:
        die_in_write(int(os.environ["DIE_IN_WRITE"]))
    raise SystemExit(main(sys.argv[1:], program="sgoif-bench labels"))
