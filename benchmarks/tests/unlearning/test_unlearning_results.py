"""The committed results show what they have to: deletions enough, predictions that rank, removals that go the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_paths import RESULTS

from sgoif_bench.unlearning.grid import KIND
from sgoif_bench.unlearning.measures import PREDICTIONS, spearman

FILES = sorted(RESULTS.glob("unlearning-*.jsonl"))
SEEDS = {"unlearning-digits": 3}
"""Where more than one is promised."""


def test_digits_and_mnist_are_there() -> None:
    assert {"unlearning-digits.jsonl", "unlearning-mnist.jsonl"} <= {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_results(path: Path) -> None:
    lines = KIND.read([path])
    assert len({line["seed"] for line in lines}) >= SEEDS.get(path.stem, 1)
    for line in lines:
        single, group = line["metrics"]["single"], line["metrics"]["group"]
        assert single["deletions"] >= 200
        assert group["deletions"] >= 50
        assert all(10 <= size <= 50 for size in line["groups"]["size"])
        for way in PREDICTIONS:
            assert single["spearman"][way] >= 0.8
            assert group["spearman"][way] >= 0.6
        for found in (single, group):
            assert found["closed"]["newton"]["mean"] >= 0.8
            assert found["closed"]["removal"]["least"] >= 0.8
            for way in PREDICTIONS[1:]:
                assert found["certificate"][way]["broken"] == 0
                assert found["interval"][way]["coverage"] == 1.0
                assert found["flips"][way]["certain_but_wrong"] == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_figures_are_those_of_the_deletions_beside_them(path: Path) -> None:
    for line in KIND.read([path]):
        for what, deletions in (("single", line["singles"]), ("group", line["groups"])):
            found = line["metrics"][what]
            assert len(deletions["retrained"]) == found["deletions"]
            for way in PREDICTIONS:
                again = spearman(deletions["predicted"][way], deletions["retrained"])
                # Deletions are written down to six digits, which can make equal what was not.
                assert again == pytest.approx(found["spearman"][way], abs=1e-3)
