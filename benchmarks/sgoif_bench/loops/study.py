"""What a loop is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from sgoif.monitor import InfluenceMonitor

BATCH = 256


class Watching(Protocol):
    """What a loop asks of a monitor."""

    def step(self, index: Any, target: Any = None) -> AbstractContextManager[None]:
        """Wrap the forward and backward pass of one batch."""


class Unwatched:
    """In the place of a monitor: the same training without one."""

    def step(self, index: Any, target: Any = None) -> AbstractContextManager[None]:
        del index, target
        return nullcontext()


@dataclass(frozen=True)
class Study:
    """One training that is asked for."""

    dataset: Dataset[Any]
    """Pairs of an image [1, 8, 8] and a label, which may be wrong."""
    seed: int
    epochs: int
    monitored: bool = True

    def monitor(self, model: nn.Module, optimizer: torch.optim.Optimizer, anchors: Any, **options: Any) -> Watching:
        """`InfluenceMonitor(model, optimizer, anchors=...)`, or nothing of the kind."""
        return InfluenceMonitor(model, optimizer, anchors, **options) if self.monitored else Unwatched()


@dataclass(frozen=True)
class Trained:
    """What a loop ends with."""

    model: nn.Module
    """Whose weights are compared with those of the same training without the monitor."""
    monitor: Watching | None
    answer: Callable[[Tensor], Tensor] | None = None
    """Logits of images by the final model, where that is not the model itself in evaluation mode."""

    def logits(self, images: Tensor) -> Tensor:
        """What the final model says of images, without augmentation."""
        self.model.eval()
        with torch.no_grad():
            answer = self.answer or self.model
            return torch.cat([answer(some) for some in images.split(BATCH)]).float()
