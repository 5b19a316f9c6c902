"""Separable blobs with a known share of wrong labels, and small networks that learn them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sgoif import InfluenceMonitor, indexed, split_holdout

DIMENSIONS, COUNT = 16, 1000


@dataclass
class Problem:
    """Blobs, one per class; a share of labels was moved to another class."""

    x: Tensor
    true: np.ndarray[Any, Any]
    given: np.ndarray[Any, Any]

    @property
    def wrong(self) -> np.ndarray[Any, Any]:
        return self.true != self.given

    @property
    def dataset(self) -> TensorDataset:
        return TensorDataset(self.x, torch.from_numpy(self.given))


def blobs(count: int = COUNT, classes: int = 4, rate: float = 0.2, seed: int = 0) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    centres = 1.5 * torch.randn(classes, DIMENSIONS, generator=generator)
    true = torch.arange(count) % classes
    x = centres[true] + torch.randn(count, DIMENSIONS, generator=generator)
    flip = torch.rand(count, generator=generator) < rate
    other = (true + torch.randint(1, classes, (count,), generator=generator)) % classes
    return Problem(x, true.numpy(), torch.where(flip, other, true).numpy())


def network(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(DIMENSIONS, 32), nn.ReLU(), nn.Linear(32, outputs))


def loop(monitor: InfluenceMonitor, training: Dataset[Any], epochs: int, batches: int | None = None) -> None:
    model, optimizer = monitor.model, monitor.optimizer
    loader = DataLoader(indexed(training), 50, shuffle=True, generator=torch.Generator().manual_seed(1))
    for _ in range(epochs):
        for number, (x, y, index) in enumerate(loader):
            if batches is not None and number == batches:
                return
            with monitor.step(index):
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()


def watch(anchors: Any, classes: int = 4, **options: Any) -> InfluenceMonitor:
    model = network(classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return InfluenceMonitor(model, optimizer, anchors=anchors, **options)


def trained(problem: Problem, classes: int = 4, epochs: int = 8, **options: Any) -> InfluenceMonitor:
    training, held_out = split_holdout(problem.dataset, share=0.2)
    monitor = watch(held_out, classes, **options)
    loop(monitor, training, epochs)
    return monitor
