"""A training loop on blobs of which some labels are wrong, small enough to be run many times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sgoif import InfluenceMonitor, split_holdout
from sgoif.core.data import Part
from sgoif.tasks import Curriculum

DIMENSIONS, CLASSES, COUNT, BATCH = 12, 4, 800, 50


@dataclass
class Blobs:
    """One blob per class; a share of the labels was moved to the next class. Training set and hold-out of it."""

    x: Tensor
    true: np.ndarray[Any, Any]
    given: np.ndarray[Any, Any]
    training: Part = field(init=False)
    held_out: Part = field(init=False)

    def __post_init__(self) -> None:
        self.training, self.held_out = split_holdout(TensorDataset(self.x, torch.from_numpy(self.given)), share=0.2)

    @property
    def wrong(self) -> np.ndarray[Any, Any]:
        return self.true != self.given

    @property
    def rows(self) -> np.ndarray[Any, Any]:
        """Indices that are trained on."""
        return np.asarray(self.training.indices)


def blobs(rate: float = 0.25, seed: int = 0, sizes: tuple[int, ...] | None = None, distance: float = 2.5) -> Blobs:
    generator = np.random.default_rng(seed)
    counts = sizes or (COUNT // CLASSES,) * CLASSES
    true = generator.permutation(np.repeat(np.arange(CLASSES), counts))
    centres = distance * np.eye(CLASSES, DIMENSIONS)
    x = centres[true] + generator.standard_normal((len(true), DIMENSIONS))
    given = true.copy()
    chosen = generator.choice(len(true), round(rate * len(true)), replace=False)
    given[chosen] = (true[chosen] + generator.integers(1, CLASSES, len(chosen))) % CLASSES
    return Blobs(torch.from_numpy(x).float(), true, given)


@dataclass
class Run:
    """A model, its optimizer and monitor, and the order of its batches; everything follows from the seed."""

    data: Blobs
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.model = nn.Sequential(nn.Linear(DIMENSIONS, 64), nn.ReLU(), nn.Linear(64, CLASSES))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.monitor = InfluenceMonitor(
            self.model, self.optimizer, anchors=self.data.held_out, size=len(self.data.x), **self.options
        )

    def batches(self, epoch: int, rows: np.ndarray[Any, Any] | None = None) -> Iterator[Tensor]:
        order = np.random.default_rng((self.seed, epoch)).permutation(self.data.rows if rows is None else rows)
        yield from torch.from_numpy(order).split(BATCH)

    def step(self, index: Tensor, weights: Tensor | None) -> None:
        x, y = self.data.x[index], torch.from_numpy(self.data.given)[index]
        with self.monitor.step(index, weights=weights):
            losses = F.cross_entropy(self.model(x), y, reduction="none")
            (losses if weights is None else losses * weights).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def epochs(
        self, first: int, last: int, weigh: Callable[[Tensor], Tensor] | None = None, on_batch: Any = None
    ) -> None:
        """Train from epoch `first` up to but not including `last`, weighed by what `weigh` says of each batch."""
        for epoch in range(first, last):
            for index in self.batches(epoch):
                self.step(index, None if weigh is None else weigh(index))
                if on_batch is not None:
                    on_batch(epoch, index)


def finished_curriculum(data: Blobs) -> Curriculum:
    """One whose hold-out may join after seven epochs; its monitor is closed."""
    run = Run(data)
    curriculum = Curriculum(run.monitor, warm_up=2)
    run.epochs(0, 7, curriculum.weights)
    curriculum.finish()
    run.monitor.close()
    return curriculum
