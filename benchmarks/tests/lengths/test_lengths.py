"""`sgoif-bench lengths`: runs of so many steps beside so many anchors, their file, table and mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sgoif_bench.cli import main as cli
from sgoif_bench.kinds import kind_of
from sgoif_bench.lengths.grid import KIND, Job
from sgoif_bench.lengths.run import LengthSettings, main
from sgoif_bench.lengths.runner import some_examples
from sgoif_bench.lengths.table import rows
from sgoif_bench.loops.digits import all_digits
from sgoif_bench.loops.measures import OTHERS

pytest.importorskip("sklearn", reason="scikit-learn carries the digits: pip install 'sgoif[demo]'")
SMALL = ["--steps", "4,6", "--anchors", "20,40", "--noises", "symmetric-20", "--seeds", "0"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lengths") / "found.jsonl"
    assert main([*SMALL, "--out", str(out)]) == 0
    return out


def test_a_run_has_the_steps_and_about_the_anchors_that_were_asked_for(results: Path) -> None:
    found = KIND.read([results])
    assert len({KIND.key_of(line) for line in found}) == len(found) == 4
    for line in found:
        assert {"label_score", "influence", *OTHERS, "labels_known", "accuracy"} == set(line["metrics"])
        assert line["efforts"]["steps"] == line["steps"]
        assert abs(line["efforts"]["anchors"] - line["anchors"]) <= 5  # the same share of every class
        assert line["examples"] == max(100, line["steps"] * 64 // 3)


def test_what_is_there_is_not_computed_again(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = results.read_bytes()
    assert main([*SMALL, "--out", str(results)]) == 0
    assert results.read_bytes() == before
    assert "4 runs asked for, 4 already" in capsys.readouterr().err


def test_the_table_command_knows_the_file(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kind_of([results]) == "lengths"
    assert cli(["table", str(results)]) == 0
    assert "| symmetric-20 | 6 | 40 |" in capsys.readouterr().out


def test_a_data_set_that_is_too_small_for_the_run_is_used_whole() -> None:
    data = all_digits()
    found = some_examples(data, Job("digits", 3000, 200, "symmetric-20", 0))
    assert len(found.given) == len(data)
    assert np.array_equal(np.bincount(found.right), np.bincount(data.labels))


def test_rows_compare_with_the_best_mean_of_the_others() -> None:
    def line(steps: int, label_score: float, loss: float) -> dict[str, Any]:
        metrics = {**dict.fromkeys(OTHERS, 0.1), "label_score": label_score, "influence": 0.25, "mean_loss": loss}
        return {"noise": "symmetric-20", "steps": steps, "anchors": 50, "metrics": metrics}

    assert rows([line(300, 0.9, 0.8), line(20, 0.4, 0.5), line(300, 0.8, 0.8)]) == [
        ["symmetric-20", "20", "50", "40.0", "25.0", "50.0 mean loss", "−10.0"],
        ["symmetric-20", "300", "50", "85.0", "25.0", "80.0 mean loss", "+5.0"],
    ]


def test_long_runs_are_begun_first() -> None:
    jobs = LengthSettings(steps="20,3000", anchors="50", noises="symmetric-20", seeds="0").jobs()
    assert [job.steps for job in jobs] == [3000, 20]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "1"], "--steps takes whole numbers from 2 up"),
        (["--anchors", "few"], "--anchors takes whole numbers from 20 up"),
        (["--anchors", "1790"], "anchors = 1790 leave nothing to train on: digits has 1797 examples"),
        (["--noises", "none"], "nothing to find"),
        (["--workers", "0"], "workers = 0"),
        (["--data", "nowhere"], "--data nowhere is not a folder"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *arguments, "--out", str(tmp_path / "found.jsonl")]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert not shown.out
