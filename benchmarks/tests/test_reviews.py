from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judgement.judgement_runs import about, known

from sgoif.tasks.review import ReviewPlan, estimate
from sgoif_bench.judgement.archive import save
from sgoif_bench.review_rivals import betting, difference
from sgoif_bench.reviews import ReviewSettings, main, plain_width, read_runs


def write_run(path: Path, separation: float, size: int = 800) -> None:
    draws = np.random.default_rng(0)
    wrong = draws.random(size) < 0.2
    v = separation * wrong + draws.normal(size=size)
    np.savez(path, v=v, p=1 / (1 + np.exp(3 - 2 * v)), wrong=wrong)


def run(tmp_path: Path, *more: str) -> list[dict[str, Any]]:
    out = tmp_path / "out.jsonl"
    words = ["--runs", str(tmp_path), "--looks", "40,200", "--repetitions", "6", "--out", str(out), *more]
    assert main(words) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_every_run_and_a_random_ranking_get_a_line_each_number_of_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "good.npz", 5)
    lines = run(tmp_path)
    cells = [(line["ranking"], line["looks"]) for line in lines]
    assert cells == [("own", 40), ("own", 200), ("random", 40), ("random", 200)]
    own, random = lines[1]["metrics"], lines[3]["metrics"]
    assert own["width"] < 0.7 * own["plain_width"]
    assert random["width"] > own["width"]
    assert own["f1"] == own["close"] == 1
    assert {"stop", "foretold"} <= own.keys()
    assert "stop" not in lines[0]["metrics"]
    assert capsys.readouterr().out.count("| good |") == 4
    assert run(tmp_path) == lines  # nothing is computed again


def test_published_probabilities_are_read(tmp_path: Path) -> None:
    logp = np.array([[0, 80], [80, 0], [11, 11]], dtype=np.uint8)
    np.savez(tmp_path / "x.npz", **{"a|logp": logp, "a|given": np.array([0, 0, 1], dtype=np.uint8),
                                    "a|wrong": np.array([False, True, True])})  # fmt: skip
    (found,) = read_runs(ReviewSettings(data=str(tmp_path / "x.npz")))
    np.testing.assert_allclose(found.prior, [1 / (1 + np.exp(-5)), 0.5, 1 / (1 + np.exp(5))])
    assert found.wrong.tolist() == [True, True, False]


def test_runs_of_the_corpus_are_ranked_by_their_judgement(tmp_path: Path) -> None:
    for name in ("digits-a", "digits-b"):
        save(tmp_path / f"{name}.npz", known(), about(name, "digits"))
    (found,) = read_runs(ReviewSettings(evidence=str(tmp_path), only="a$"))
    assert found.name == "digits-a"
    assert len(found.wrong) == len(found.prior) == 400
    assert found.wrong[:40].mean() > 0.9 > 0.2 > found.wrong[200:].mean()
    assert (np.diff(found.prior) <= 0).all()


@pytest.mark.parametrize(
    "words",
    [[], ["--runs", "RUNS", "--looks", "0"], ["--runs", "RUNS", "--only", "no"], ["--runs", "RUNS", "--only", "("]],
)
def test_what_cannot_be_measured_is_told(words: list[str], tmp_path: Path) -> None:
    write_run(tmp_path / "good.npz", 5)
    given = [str(tmp_path) if word == "RUNS" else word for word in words]
    assert main([*given, "--out", str(tmp_path / "o.jsonl")]) == 2


def test_a_file_without_the_arrays_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "odd.npz", v=np.zeros(3))
    assert main(["--runs", str(tmp_path), "--out", str(tmp_path / "o.jsonl")]) == 2
    assert "lacks the arrays p, wrong" in capsys.readouterr().err


def test_plain_looks_have_the_interval_of_clopper_and_pearson() -> None:
    assert plain_width(np.array([0, 0, 5]), 40, 10**6) == pytest.approx(0.0881, abs=1e-3)


@pytest.mark.parametrize("interval", [difference, betting])
def test_other_intervals_hold_the_truth_mostly(interval: Any) -> None:
    draws = np.random.default_rng(1)
    hits = []
    for seed in range(40):
        wrong = draws.random(2000) < 0.3
        plan = ReviewPlan(2000, tuple(range(100, 2001, 100)), seed)
        found = estimate(plan, {i: bool(wrong[i]) for i in plan.looks(100).tolist()}, np.full(2000, 0.3))
        low, high = interval(found, np.full(2000, 0.3))
        hits.append(low <= wrong.mean() <= high)
        assert 0 <= low < high <= 1
    assert np.mean(hits) >= 0.85
