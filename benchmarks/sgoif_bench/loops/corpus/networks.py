"""Networks that several loops share: those of recipes, which people try with whatever network they have."""

from __future__ import annotations

from torch import nn


def convnet(classes: int = 10, width: int = 16) -> nn.Sequential:
    """Three convolutions with batch norm, a mean over positions and a linear head."""
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
        *(nn.Conv2d(width, 2 * width, 3, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(2 * width, 4 * width, 3, padding=1, bias=False), nn.BatchNorm2d(4 * width), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes)),
    )


def features(width: int = 64) -> nn.Sequential:
    """What comes before a head of one's own."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
