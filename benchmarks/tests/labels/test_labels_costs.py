"""`sgoif-bench labels-costs`: what methods cost beside a plain training."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import striped
from torch.utils.flop_counter import FlopCounterMode

from sgoif.errors import SgoifError
from sgoif_bench.cli import main as cli
from sgoif_bench.labels import costs
from sgoif_bench.labels.costs import PLAIN, cost, main, ratios, work_of

pytest.importorskip("sklearn", reason="scikit-learn carries the digits: pip install 'sgoif[demo]'")
SMALL = ["--set", "digits", "--limit", "120", "--anchors", "20", "--epochs", "1", "--repeats", "2", "--device", "cpu"]


def turn(seconds: float, peak: float, flops: float) -> dict[str, float]:
    return {"seconds": seconds, "peak_bytes": peak, "flops": flops}


def test_a_ratio_is_the_median_over_turns_each_beside_the_training_of_its_own_turn() -> None:
    turns = {
        PLAIN: [turn(1, 100, 10), turn(2, 100, 10), turn(10, 100, 10)],
        "aum": [turn(2, 150, 10), turn(6, 100, 10), turn(10, 50, 10)],
    }
    assert ratios(turns) == {"aum": turn(2, 1, 1)}


def test_a_method_that_only_looks_on_has_the_products_of_a_training_and_three_networks_thrice_as_many() -> None:
    problem, _ = striped(size=64, rate=0.2, epochs=1, anchors=16)
    counted = {}
    for name in (PLAIN, "aum", "coteaching"):
        with FlopCounterMode(display=False) as counter:
            work_of(name)(problem)
        counted[name] = counter.get_total_flops()
    assert counted["aum"] == counted[PLAIN] > 0
    assert 1.5 < counted["coteaching"] / counted[PLAIN] <= 4


def test_the_command_measures_each_method_in_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "costs.json"
    assert cli(["labels-costs", *SMALL, "--methods", "aum,knn", "--out", str(out)]) == 0
    whole: dict[str, Any] = json.loads(out.read_text())
    assert {name: len(found) for name, found in whole["turns"].items()} == {PLAIN: 2, "aum": 2, "knn": 2}
    assert all(cost["seconds"] > 0 and cost["peak_bytes"] > 0 for found in whole["turns"].values() for cost in found)
    assert whole["ratios"]["knn"]["flops"] > whole["ratios"]["aum"]["flops"] == 1
    assert "| AUM | " in capsys.readouterr().out


def test_a_method_that_fails_is_told_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*given: object) -> None:
        raise torch.cuda.OutOfMemoryError("no memory left")

    monkeypatch.setattr(costs, "work_of", lambda name: fail)
    out = tmp_path / "costs.json"
    assert main([*SMALL, "--methods", "aum", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert "no memory left" in said
    assert "training failed, leave it out with --methods" in said
    assert not out.exists()


def test_a_method_that_ends_its_process_is_told() -> None:
    problem, _ = striped(size=64, rate=0.2, epochs=1, anchors=16)
    with pytest.raises(SgoifError, match="ended its process"):
        cost(lambda given: os._exit(3), problem, torch.device("cpu"))


@pytest.mark.parametrize(
    ("options", "said"), [(["--repeats", "0"], "repeats = 0"), (["--methods", "without-gate"], "no cost of its own")]
)
def test_a_mistake_is_answered_with_a_sentence(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *options]) == 2
    assert said in capsys.readouterr().err
