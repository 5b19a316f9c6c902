"""In loops of others the label score is hardly behind the best signal that needs no influence."""

from __future__ import annotations

import pytest

from sgoif_bench.loops.digits import noisy_digits
from sgoif_bench.loops.grid import Job
from sgoif_bench.loops.measures import found
from sgoif_bench.loops.registry import LOOPS, train_function
from sgoif_bench.loops.runner import Runner
from sgoif_bench.loops.study import Study
from sgoif_bench.loops.table import compared

pytest.importorskip("sklearn", reason="scikit-learn carries the digits: pip install 'sgoif[demo]'")
POINTS = 1.0
"""Of AUPR, in percent, the mean over the seeds."""
SEEDS = (0, 1, 2)


def metrics_of(name: str, noise: str, seed: int) -> dict[str, float]:
    """What the monitor of a run finds."""
    examples = noisy_digits(noise, seed)
    return found(train_function(name)(Study(examples.dataset(), seed, LOOPS[name].epochs)), examples)


@pytest.mark.long
@pytest.mark.parametrize("noise", ["symmetric-20", "class-dependent-20"])
@pytest.mark.parametrize(
    "name", ["pytorch-mnist", pytest.param("cifar-resnet", marks=pytest.mark.slow), "adam", "adadelta", "lamb"]
)
def test_the_label_score_is_at_most_a_point_behind(name: str, noise: str) -> None:
    """One run is a whole one, with the plain training beside it; of the others the figures are all that is asked."""
    whole = Runner("a test", tell=lambda message: None).do(Job(name, noise, SEEDS[0], LOOPS[name].epochs))
    assert whole.failures == {}
    (line,) = whole.lines
    assert line["identical"]
    cell = compared([line, *({"metrics": metrics_of(name, noise, seed)} for seed in SEEDS[1:])])
    assert cell.ahead >= -POINTS, f"{name}: label score {cell.label_score:.1f}, {cell.best} {cell.other:.1f}"
