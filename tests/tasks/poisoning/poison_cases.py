"""Clouds of features with a small group planted in one class, and networks whose features are their inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

Array = np.ndarray[Any, Any]
SIZE, CLASSES = 24, 4


@dataclass(frozen=True)
class Cloud:
    """Features [N, D] with labels, which of them are planted, and inputs that share their shift."""

    x: Tensor
    y: Tensor
    planted: Array
    victims: Tensor
    target: int
    trigger: Tensor

    def dataset(self) -> TensorDataset:
        return TensorDataset(self.x, self.y)


def cloud(
    per_class: int = 150, planted: int = 14, shift: float = 9.0, seed: int = 0, target: int = 2, victims: int = 12
) -> Cloud:
    """Classes that scatter alike, most along the first axis, which skews nobody; one has a group shifted by a trigger.

    The group and the victims come from the other classes: they keep a quarter of the way to their own class.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = 6 * torch.randn(CLASSES, SIZE, generator=generator) / SIZE**0.5
    spreads = torch.ones(SIZE)
    spreads[0] = 3.0
    trigger = torch.zeros(SIZE)
    trigger[7] = shift

    def drawn(labels: Tensor) -> Tensor:
        return centres[labels] + spreads * torch.randn(len(labels), SIZE, generator=generator)

    y = torch.arange(CLASSES).repeat_interleave(per_class)
    x = drawn(y)
    others = torch.tensor([c for c in range(CLASSES) if c != target])

    def triggered(count: int) -> Tensor:
        sources = others[torch.arange(count) % len(others)]
        own = drawn(torch.full((count,), target))
        return own + trigger + 0.25 * (centres[sources] - centres[target])

    x = torch.cat([x, triggered(planted)])
    y = torch.cat([y, torch.full((planted,), target)])
    order = torch.randperm(len(y), generator=generator)
    marked = (order >= CLASSES * per_class).numpy()
    return Cloud(x[order], y[order], marked, triggered(victims), target, trigger)


class Direct(nn.Module):
    """A network without a body: the head's inputs are the inputs. Its answers come from the class means."""

    def __init__(self, x: Tensor, y: Tensor, classes: int = CLASSES) -> None:
        super().__init__()
        self.body = nn.Identity()
        self.head = nn.Linear(x.shape[1], classes)
        means = torch.stack([x[y == c].mean(0) for c in range(classes)])
        with torch.no_grad():
            self.head.weight.copy_(means)
            self.head.bias.copy_(-0.5 * means.square().sum(1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out
