"""A loop that does with a schedule of refreshes what the monitor does, on a clock that moves when told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sgoif import InfluenceMonitor
from sgoif.engine.refresh_schedule import RefreshSchedule


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def set_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Have budgets read the time off a clock of this kind."""
    clock = Clock()
    monkeypatch.setattr("sgoif.engine.time_budget.perf_counter", clock)
    monkeypatch.setattr("sgoif.device.timing.perf_counter", clock)
    return clock


def run(
    schedule: RefreshSchedule, steps: int, batch: int, known: int, clock: Clock | None = None, **cost: float
) -> list[int]:
    """Steps at which a refresh fell, in a loop that does what the monitor does."""
    refreshed = []
    for step in range(steps):
        schedule.time.begin()
        if clock:
            clock.now += cost.get("train", 0.0)
        if step % schedule.time.stride == 0:
            if schedule.due(batch, known):
                refreshed.append(step)
                schedule.refreshing()
                if clock:
                    clock.now += cost.get("refresh", 0.0)
                schedule.time.refreshed(cost.get("refresh", 0.0))
            if clock:
                clock.now += cost.get("score", 0.0)
            schedule.time.account(cost.get("score", 0.0), scored=True)
        else:
            if clock:
                clock.now += cost.get("passing", 0.0)
            schedule.time.account(cost.get("passing", 0.0), scored=False)
        schedule.end(batch)
    return refreshed


def tiny(**options: Any) -> tuple[InfluenceMonitor, Callable[[int], None]]:
    """A monitor over a small problem and a function that trains it for some steps of eight examples."""
    x, y = torch.randn(100, 6), torch.arange(100) % 3
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = InfluenceMonitor(model, optimizer, anchors=(x[80:], y[80:]), **options)

    def train(steps: int) -> None:
        for _ in range(steps):
            index = torch.randperm(80)[:8]
            with monitor.step(index):
                nn.functional.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
            optimizer.zero_grad()

    return monitor, train
