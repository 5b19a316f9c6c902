"""In loops of others the label score is hardly behind the best signal that needs no influence."""

from __future__ import annotations

import pytest

from sgoif_bench.loops.grid import Job
from sgoif_bench.loops.registry import LOOPS
from sgoif_bench.loops.runner import Runner
from sgoif_bench.loops.table import compared

pytest.importorskip("sklearn", reason="scikit-learn carries the digits: pip install 'sgoif[demo]'")
POINTS = 1.0
"""Of AUPR, in percent, the mean over the seeds."""
SEEDS = (0, 1, 2)


@pytest.mark.long
@pytest.mark.parametrize("noise", ["symmetric-20", "class-dependent-20"])
@pytest.mark.parametrize("name", ["pytorch-mnist", "cifar-resnet", "adam", "adadelta", "lamb"])
def test_the_label_score_is_at_most_a_point_behind(name: str, noise: str) -> None:
    runner = Runner("a test", tell=lambda message: None)
    results = [runner.do(Job(name, noise, seed, LOOPS[name].epochs)) for seed in SEEDS]
    assert [result.failures for result in results] == 3 * [{}]
    lines = [line for result in results for line in result.lines]
    assert all(line["identical"] for line in lines)
    found = compared(lines)
    assert found.ahead >= -POINTS, f"{name}: label score {found.label_score:.1f}, {found.best} {found.other:.1f}"
