"""What every rival that trains is given, and what it must return.

A method sees a `Problem` (images as bytes, labels, a recipe for training, see `bench.labels.problem`) and, only where
it is defined with one, a set of outlier images without labels, which is never a test set. It trains through the
problem's own calls wherever its authors' procedure allows, so that backbone, epochs, augmentation and precision are
those of all the others, and returns a `Scorer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem

Score = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Scorer:
    """A method after its training."""

    score: Score
    """Normalised images [n, C, H, W] on the problem's device to [n], higher = more out of distribution."""
    classifier: nn.Module | None = None
    """From normalised images to logits, for the accuracy; None where the method does not classify."""
    trainings: float = 1.0
    """Training passes over the data, in units of one plain training of the recipe."""
    details: dict[str, Any] = field(default_factory=dict)
    """Further figures for the result file."""


Train = Callable[[Problem, Tensor | None, Say], Scorer]
"""(problem, outliers uint8 [M, C, H, W] or None, tell) to what was trained."""
