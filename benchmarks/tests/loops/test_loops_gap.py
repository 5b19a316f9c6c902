"""In loops of others the label score is hardly behind the best signal that needs no influence."""

from __future__ import annotations

import pytest

from sgoif_bench.loops.digits import noisy_digits
from sgoif_bench.loops.measures import found
from sgoif_bench.loops.registry import LOOPS, train_function
from sgoif_bench.loops.study import Study
from sgoif_bench.loops.table import compared

pytest.importorskip("sklearn", reason="scikit-learn carries the digits: pip install 'sgoif[demo]'")
POINTS = 1.0
"""Of AUPR, in percent, the mean over the seeds."""
SEEDS = {"symmetric-20": (0, 1), "class-dependent-20": (0,)}
"""One is enough where the label score is far ahead: by about 30 points."""


def metrics_of(name: str, noise: str, seed: int) -> dict[str, float]:
    """What the monitor of a run finds."""
    examples = noisy_digits(noise, seed)
    return found(train_function(name)(Study(examples.dataset(), seed, LOOPS[name].epochs)), examples)


@pytest.mark.long
@pytest.mark.parametrize("noise", SEEDS)
@pytest.mark.parametrize(
    "name", ["pytorch-mnist", pytest.param("cifar-resnet", marks=pytest.mark.slow), "adam", "adadelta", "lamb"]
)
def test_the_label_score_is_at_most_a_point_behind(name: str, noise: str) -> None:
    """That the training is as without the monitor is asked of every loop in the files beside this one."""
    cell = compared([{"metrics": metrics_of(name, noise, seed)} for seed in SEEDS[noise]])
    assert cell.ahead >= -POINTS, f"{name}: label score {cell.label_score:.1f}, {cell.best} {cell.other:.1f}"
