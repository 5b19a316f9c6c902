"""A judge is compared with the truth, with constants from other data sets than the judged one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judgement_runs import about, known

from sgoif_bench.judgement import archive, judge, table
from sgoif_bench.judgement.corpus import Kept
from sgoif_bench.judgement.judges import Answer


class Loss:
    """Lists what loses more than a constant: the names of the data sets that this was fitted on stand for it."""

    shuffled = False

    def fit(self, runs: Sequence[Kept]) -> tuple[str, ...]:
        return tuple(sorted({run.set for run in runs}))

    def judge(self, run: Mapping[str, Any], constants: Any) -> Answer:
        parts = run["training"], run["anchors"]
        index, loss = (np.concatenate([getattr(part, name) for part in parts]) for name in ("index", "loss"))
        listed = np.argsort(-loss)[:20]
        index = index[::-1] if self.shuffled else index
        return Answer(index, parts[0].loss, 1 / (1 + np.exp(-loss)), (0.2, 0.1, 0.3), listed)


class Shuffled(Loss):
    """Mixes up its examples."""

    shuffled = True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, (name, of) in enumerate((("a", "digits"), ("b", "digits"), ("c", "mnist"))):
        archive.save(tmp_path / "kept" / f"{name}.npz", known(seed=number), about(name, of))
    archive.save(tmp_path / "kept" / "clean.npz", known(rate=0), about("clean", "svhn", agreement=0.5))
    return tmp_path / "kept"


def judged(folder: Path, *asked: str) -> list[dict[str, Any]]:
    out = folder.parent / "lines.jsonl"
    assert judge.main(["--evidence", str(folder), "--out", str(out), *asked]) in (0, 1)
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def test_constants_never_saw_the_judged_data_set(folder: Path) -> None:
    lines = judged(folder, "--judge", f"{__name__}:Loss")
    assert {line["name"]: line["constants"] for line in lines} == {
        "a": "('mnist', 'svhn')",
        "b": "('mnist', 'svhn')",
        "c": "('digits', 'svhn')",
        "clean": "('digits', 'mnist')",
    }


def test_what_is_stated_is_compared_with_the_truth(folder: Path) -> None:
    line = next(line for line in judged(folder, "--judge", f"{__name__}:Loss") if line["name"] == "a")
    run = archive.load(folder / "a.npz")
    wrong = run["true"] != run["given"]
    assert line["stated"]["noise_rate_true"] == pytest.approx(wrong.mean(), rel=1e-4)
    assert line["stated"]["covered"] is True
    assert line["stated"]["width"] == pytest.approx(0.2)
    found = line["stated"]["recall"] * wrong.sum()
    assert found == pytest.approx(20 * (1 - line["stated"]["false_discovery_rate"]), rel=1e-4)
    assert line["aupr"]["label_score"] == pytest.approx(line["aupr"]["mean_loss"], abs=0.02)
    assert set(line["aupr"]) == {*judge.SINGLES, "influence", "label_score"}


def test_a_clean_run_has_no_recall_and_no_ranking(folder: Path) -> None:
    line = next(line for line in judged(folder, "--judge", f"{__name__}:Loss") if line["name"] == "clean")
    assert line["stated"]["false_discovery_rate"] == 1
    assert (line["stated"]["recall"], line["aupr"]) == (None, None)


def test_a_judge_that_mixes_up_its_examples_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = judged(folder, "--judge", f"{__name__}:Shuffled", "--runs", "^a$")
    assert "in their order" in lines[0]["error"]
    assert "a was not judged" in capsys.readouterr().out


def test_the_product_judges_runs_in_several_processes(folder: Path) -> None:
    lines = judged(folder, "--runs", "^[ab]$", "--workers", "2")
    assert [line["error"] for line in lines] == [None, None]
    assert all(line["stated"]["covered"] for line in lines)
    assert all(line["aupr"]["label_score"] > 0.9 for line in lines)


@pytest.mark.parametrize(("low", "high", "covered"), [(0.0, 0.01, True), (4e-3, 0.1, True), (6e-3, 0.1, False)])
def test_an_interval_may_miss_by_half_an_example(low: float, high: float, covered: bool) -> None:
    answer = Answer(np.arange(100), np.zeros(100), np.zeros(100), (low, low, high), np.zeros(0, dtype=np.int64))
    assert judge.stated(answer, np.zeros(100, dtype=bool))["covered"] is covered


def stated(covered: bool, width: float, fdr: float | None, recall: float | None) -> dict[str, Any]:
    found = {"covered": covered, "width": width, "false_discovery_rate": fdr, "recall": recall}
    return {**found, "low": 0.1, "high": 0.1 + width, "noise_rate_true": 0.2 if covered else 0.7, "listed": 50}


def test_the_table_counts_what_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {**about("a", "digits"), "stated": stated(True, 0.1, 0.15, 0.5), "aupr": {"label_score": 0.8, "x": 0.9}},
        {**about("b", "digits"), "stated": stated(False, 0.3, 0.16, 0.7), "aupr": {"label_score": 0.9, "x": 0.8}},
        {**about("c", "mnist", 0.5), "stated": stated(True, 0.9, None, None), "aupr": None},
    ]
    lines = [{**line, "error": None} for line in lines]
    found = {name: table.cells(table.summary(some)) for name, some in table.by_set(lines).items()}
    assert found == {
        "digits": ["2", "50%", "0.20", "50%", "60%", "5.0"],
        "mnist": ["1", "100%", "–", "100%", "–", "–"],
        "all": ["3", "67%", "0.20", "67%", "60%", "5.0"],
    }
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert table.main([str(path)]) == 0
    out = capsys.readouterr().out
    assert "digits  2     50%" in out
    missed = ["b: 70.0% are wrong, stated 10.0 to 40.0%", "b: 16% of 50 are right"]
    assert [row for row in out.splitlines() if ": " in row] == missed
    assert table.main([]) == 2


def test_lines_of_earlier_files_are_read_as_they_were_judged_without_planted_errors() -> None:
    line = {**about("a", "digits"), "with_decoys": None, "without_decoys": stated(True, 0.1, 0.1, 0.5)}
    found = table.summary([{**line, "error": None, "aupr": None}])
    assert (found["runs"], found["covered"]) == (1, 1)


def test_planted_errors_of_earlier_runs_are_left_out(tmp_path: Path) -> None:
    run = known()
    planted = run["rows"][::7]
    archive.save(tmp_path / "run.npz", run, about("run", "digits"))
    with np.load(tmp_path / "run.npz") as kept:
        arrays = dict(kept)
    np.savez_compressed(tmp_path / "old.npz", **arrays, decoys=planted)
    whole, left = archive.load(tmp_path / "run.npz"), archive.load(tmp_path / "old.npz")
    own = ~np.isin(whole["rows"], planted)
    np.testing.assert_array_equal(left["rows"], whole["rows"][own])
    np.testing.assert_array_equal(left["training"].loss, whole["training"].loss[own])
    np.testing.assert_array_equal(left["signal_loss"], whole["signal_loss"][own])
    np.testing.assert_array_equal(left["halves"], whole["halves"][own])
