"""A training loop that makes one mistake and goes on, and what a monitor's state says about it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from sgoif import InfluenceMonitor

CLASSES, TRAINING, BATCH = 3, 60, 10


class Loop:
    """A training loop around a monitor that has scored one step already."""

    def __init__(self, model: nn.Module | None = None, steps: int = 1, **options) -> None:
        torch.manual_seed(1)
        self.inputs, self.labels = torch.randn(80, 5), torch.arange(80) % CLASSES
        self.model = model or nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, CLASSES))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        anchors = (self.inputs[TRAINING:], self.labels[TRAINING:])
        self.monitor = InfluenceMonitor(self.model, self.optimizer, anchors=anchors, **options)
        self.done = 0
        for _ in range(steps):
            self.step()

    def rows(self) -> torch.Tensor:
        return (torch.arange(BATCH) + BATCH * self.done) % TRAINING

    def loss(self, rows: torch.Tensor | None = None) -> torch.Tensor:
        rows = self.rows() if rows is None else rows
        return nn.functional.cross_entropy(self.model(self.inputs[rows]), self.labels[rows])

    def step(self) -> None:
        """One correct step."""
        with self.monitor.step(self.rows()):
            self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1

    def attempt(self, body: Callable[[], object], index=None, **options) -> None:
        """One step around any body."""
        with self.monitor.step(self.rows() if index is None else index, **options):
            body()

    def state(self) -> dict:
        return self.monitor.state_dict()

    def assert_goes_on(self) -> None:
        """The next correct step works, is scored, and nothing else has left a trace."""
        steps, seen = self.monitor.steps, self.monitor.scores()["n_observations"].sum()
        self.optimizer.zero_grad()
        rows = self.rows()
        self.step()
        assert self.monitor.steps == steps + 1
        table = self.monitor.scores()
        assert table["n_observations"].sum() == seen + BATCH
        scored = dict(zip(table["index"].tolist(), table["influence"].tolist(), strict=True))
        assert all(np.isfinite(scored[row]) for row in rows.tolist())
        assert bool(self.monitor.last.influence.isfinite().all())


def same(one: dict, other: dict) -> list[str]:
    """Keys in which two states differ, apart from the time that was spent."""
    differ = []
    for key in one.keys() | other.keys():
        a, b = one.get(key), other.get(key)
        tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        equal = torch.equal(a.nan_to_num(7), b.nan_to_num(7)) if tensors else repr(a) == repr(b)
        if not equal and key != "schedule.times":
            differ.append(key)
    return sorted(differ)


def tokens() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, CLASSES))
