"""A training run whose steps are deferred or not, and the comparison of two of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sgoif import InfluenceMonitor

CLASSES, TRAINING = 4, 120


class Run:
    """A training run whose monitor may put steps off, or may not."""

    def __init__(self, late: bool, batch: int = 8, hidden: int = 0, **options: Any) -> None:
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(7)
        self.labels = torch.arange(TRAINING + 40) % CLASSES
        centres = torch.randn(CLASSES, 12, generator=generator)
        self.inputs = centres[self.labels] + 0.7 * torch.randn(len(self.labels), 12, generator=generator)
        more = [layer for _ in range(hidden) for layer in (nn.Linear(9, 9), nn.ReLU())]
        self.model = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), *more, nn.Linear(9, CLASSES))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        held_out = (self.inputs[TRAINING:], self.labels[TRAINING:])
        self.options = {"max_anchors": 24, "execution": "deferred" if late else "eager", **options}
        self.monitor = InfluenceMonitor(self.model, self.optimizer, held_out, **self.options)
        self.batches = self._batches(batch)
        self.latest = 0

    def _batches(self, batch: int) -> Iterator[Tensor]:
        order = torch.Generator().manual_seed(11)
        while True:
            yield from torch.randperm(TRAINING, generator=order).split(batch)

    def step(self, index: Any, **given: Any) -> None:
        rows = torch.as_tensor(index).clamp(0, TRAINING - 1)
        with self.monitor.step(index, **given):
            nn.functional.cross_entropy(self.model(self.inputs[rows]), self.labels[rows]).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.optimizer.param_groups[0]["lr"] *= 0.98
        self.latest = max(self.latest, len(getattr(self.monitor.executor, "deferred", [])))

    def train(self, steps: int) -> Run:
        for _ in range(steps):
            self.step(next(self.batches))
        return self


def assert_same(one: InfluenceMonitor, other: InfluenceMonitor) -> None:
    left, right = one.scores(), other.scores()
    for name in left.columns:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)
    assert one.steps == other.steps
    assert [entry["step"] for entry in one.history] == [entry["step"] for entry in other.history]
    for mine, theirs in zip(one.history, other.history, strict=True):
        assert all(mine[key] == theirs[key] or mine[key] != mine[key] for key in mine.keys() - {"seconds"})
