"""How often the curvature is learned: from every step at first, then ever more seldom, in runs of any length."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from sgoif import InfluenceMonitor
from sgoif.engine.curvature_learner import DENSE, EVERY_BODY, EVERY_HEAD, CurvatureLearner


def learner(**options: object) -> CurvatureLearner:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    anchors = TensorDataset(torch.randn(12, 4), torch.arange(12) % 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return InfluenceMonitor(model, optimizer, anchors=anchors, **options).pipeline.learner  # type: ignore[arg-type]


def learned(found: CurvatureLearner, steps: int) -> list[int]:
    return [step for step in range(1, steps) if found.interval(step) and step % found.interval(step) == 0]


@pytest.mark.parametrize(("layers", "longest"), [("head", EVERY_HEAD), ("all", EVERY_BODY)])
def test_intervals_double_with_the_steps_up_to_the_longest(layers: str, longest: int) -> None:
    found = learner(layers=layers)
    assert all(found.interval(step) == 1 for step in range(2 * DENSE))
    for step in range(2 * DENSE, 20_000):
        interval = found.interval(step)
        assert interval == longest or step / 2 < interval * DENSE <= step
        assert interval & (interval - 1) == 0
    assert found.interval(10**7) == longest


def test_every_doubling_of_a_run_gives_as_many_updates_and_a_long_run_what_it_cost_before() -> None:
    steps = learned(learner(), 100_000)
    for start in (16, 32, 64, 128):
        assert sum(start <= step < 2 * start for step in steps) == DENSE
    assert len(steps) - 100_000 // EVERY_HEAD < 5 * DENSE


def test_a_given_interval_holds_from_the_first_step() -> None:
    assert learned(learner(curvature_every=5), 21) == [5, 10, 15, 20]
