"""What every method is given, and what it must return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif_bench.command import Say
from sgoif_bench.labels.recipes import identity
from sgoif_bench.pretrained.pictures import Pictures
from sgoif_bench.pretrained.recipes import Recipe

Labels = NDArray[np.int64]
Rows = NDArray[np.int64]
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """What a method says."""

    suspicion: Scores
    """For every example, higher = more likely wrong."""
    seconds: float
    """What the method took, features apart."""
    uses_features: bool = True
    """Whether the seconds of the features have to be added."""
    made: Mapping[str, Any] = field(default_factory=dict)
    """Command, versions and machine of a training that was done elsewhere."""


@dataclass(frozen=True)
class Task:
    """Images with labels of which some are wrong. Which ones is never within reach of a method."""

    pictures: Pictures
    labels: Labels
    seed: int
    noise: str
    tell: Say
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Command, versions and machine of this run, written beside what is kept of it."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def recipe(self) -> Recipe:
        return self.pictures.recipe

    @property
    def device(self) -> torch.device:
        return self.pictures.device

    @property
    def classes(self) -> int:
        return len(self.pictures.data.classes)

    @property
    def given(self) -> Tensor:
        """The labels on the device."""
        return torch.from_numpy(self.labels).to(self.device)

    def folds(self) -> Rows:
        """The fold of every example, the same for all methods; each given label is dealt out evenly."""
        order = np.random.default_rng([self.seed, 1]).permutation(len(self))
        order = order[np.argsort(self.labels[order], kind="stable")]
        fold_of = np.empty(len(self), dtype=np.int64)
        fold_of[order] = np.arange(len(self)) % self.recipe.folds
        return fold_of

    def file(self, what: str) -> Path:
        """Where something of this task stays."""
        place = {"noise": self.noise, "seed": self.seed, "what": what, **self.recipe.described}
        name = self.pictures.data.name
        return self.pictures.scratch / f"{name}-{what}-{identity(place)}.npz"
