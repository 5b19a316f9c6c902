"""The schedule of the benchmarks, however short the training."""

from __future__ import annotations

import pytest
from torch import nn

from sgoif_bench.optimizers import make_optimizer


@pytest.mark.parametrize("steps", [*range(1, 12), 100])
def test_every_length_of_training_has_a_schedule(steps: int) -> None:
    optimizer, schedule = make_optimizer(nn.Linear(2, 2), steps, lr=0.5)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert all(0 < rate <= 0.5 for rate in rates)
    if steps >= 3:
        assert max(rates) > 0.4
