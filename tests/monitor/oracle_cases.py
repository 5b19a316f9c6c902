"""Networks and batches that scores are compared on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from engine_cases import (
    CLASSES,
)
from torch import Tensor, nn

BATCH, ANCHORS = 6, 9


class SmallResNet(nn.Module):
    """Convolutions, norms with in-place activations, a shortcut, two resolutions and a two-layer classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4), nn.ReLU(inplace=True))
        self.down = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.conv = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.neck = nn.Linear(6, 5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.down(self.stem(x))))
        x = self.relu(self.conv(x) + x)
        return self.head(F.gelu(self.neck(x.mean((2, 3)))))


def small_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 5), nn.Tanh(), nn.Linear(5, CLASSES)
    )


def images(count: int, seed: int) -> Tensor:
    return torch.randn(count, 2, 5, 5, generator=torch.Generator().manual_seed(seed))
