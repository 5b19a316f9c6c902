"""A training step between its forward pass and its scores.

OpenStep      it is watched: what is known when its forward pass begins
ClosedStep    its backward pass has ended
Observation   it waits for its scores (`scoring.step_batch`)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.core.types import Indices
from sgoif.scoring.step_batch import Observation
from sgoif.tracking.pass_record import PassRecord


@dataclass(slots=True)
class OpenStep:
    """A step that is watched."""

    record: PassRecord
    indices: Indices | Tensor
    """A tensor as long as nobody has looked at them."""
    scored: bool = True
    """Whether a budget allows its scores."""
    learning: bool = False
    """Whether the curvature learns from it."""
    weights: Tensor | None = None
    """What the loss of each example is multiplied with."""
    seconds: float = 0.0
    """That it took so far."""


@dataclass(slots=True)
class ClosedStep:
    """A step whose backward pass has ended."""

    observation: Observation | None
    """None: nothing to score."""
    indices: Indices | Tensor
    record: PassRecord | None
    """None of a step that was deferred, unless the curvature of layers below the head learns from it."""
    scored: bool = True
    learning: bool = False
    seconds: float = 0.0
    """That it took so far; only a budget asks."""
    checked: bool = True
    """Whether its indices were looked at."""
    hooks: float = 0.0
    """Of these, in hooks that score."""
    mark: torch.cuda.Event | None = None
    """Where the device was when its backward pass had ended."""
