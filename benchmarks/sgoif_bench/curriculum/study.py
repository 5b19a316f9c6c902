"""What a method is given to train, and what is seen of its training.

A method trains on the problem, whose labels are partly wrong, and shows its network after every epoch. The test images
are for the judge: a method never sees what they say. The clock stands still while the judge looks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem, Rows

Weights = NDArray[np.float32]


@dataclass(frozen=True)
class Epoch:
    """A network, or the mean of two, at the end of an epoch."""

    accuracy: float
    recall: list[float]
    """By class."""
    weights: Weights | None
    """What every example weighed in the training of this epoch, up to a common factor; None where that is unknown."""


@dataclass(frozen=True)
class Trained:
    """What a method says about its training."""

    trainings: float = 1.0
    """Training passes over the data, in units of one plain training of the recipe."""
    details: dict[str, Any] = field(default_factory=dict)
    overhead: float | None = None
    """Time of the training in units of the same without what the method adds, measured in the run; None: unknown."""


@dataclass
class Study:
    """One training under observation."""

    problem: Problem
    test: Problem
    tell: Say
    right: Rows | None = None
    """Examples whose label is right: for the oracle alone."""
    options: Mapping[str, float] = field(default_factory=dict)
    """Settings of our curriculum, where they are not the defaults: for ours alone."""

    def __post_init__(self) -> None:
        self.epochs: list[Epoch] = []
        self._started = time.perf_counter()
        self._looking = 0.0

    @property
    def seconds(self) -> float:
        """Time of the training so far, without that of looking at it."""
        self._wait()
        return time.perf_counter() - self._started - self._looking

    def look(self, *models: nn.Module, weights: Weights | None = None) -> None:
        """Test the network at the end of an epoch; of several the mean is kept."""
        epoch = self.glance(*models, weights=weights)
        self.epochs.append(epoch)
        self.tell(f"epoch {len(self.epochs)} of {self.problem.recipe.epochs}: test accuracy {100 * epoch.accuracy:.1f}")

    def glance(self, *models: nn.Module, weights: Weights | None = None) -> Epoch:
        """Test a network, or several, and write nothing down."""
        self._wait()
        start = time.perf_counter()
        recalls = np.mean([self._recall(model) for model in models], axis=0)
        shares = np.bincount(self.test.labels, minlength=self.test.classes) / len(self.test)
        epoch = Epoch(float(np.nan_to_num(recalls) @ shares), recalls.tolist(), weights)
        self._wait()
        self._looking += time.perf_counter() - start
        return epoch

    def _recall(self, model: nn.Module) -> NDArray[np.float64]:
        """Share of each class's test images that are classified rightly; not a number where there are none."""
        right = (self.test.predict(model).argmax(dim=1).cpu().numpy() == self.test.labels).astype(np.float64)
        counts = np.bincount(self.test.labels, minlength=self.test.classes)
        found = np.bincount(self.test.labels, weights=right, minlength=self.test.classes)
        return np.where(counts > 0, found / np.maximum(counts, 1), np.nan)

    def _wait(self) -> None:
        if self.problem.on_gpu:
            torch.cuda.synchronize(self.problem.device)
