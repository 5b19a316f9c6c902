"""A small trained classifier with inputs that belong and inputs that do not."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.audit.networks import conv_block

CLASSES, SIDE = 3, 8


def blobs(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """One bright row per class in noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    images = 0.3 * torch.randn(count, 1, SIDE, SIDE, generator=generator)
    images[torch.arange(count), 0, 2 * labels + 1] += 1.5
    return images, labels


def strangers(count: int, seed: int = 9) -> Tensor:
    """Columns in place of rows."""
    images, _ = blobs(count, seed)
    return images.transpose(2, 3).contiguous()


@cache
def trained() -> nn.Module:
    """Trained on `blobs`; in evaluation mode. Not to be changed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            conv_block(1, 8),
            conv_block(8, 16, pool=True),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64, CLASSES),
        )
        images, labels = blobs(600, 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(4):
            for rows in torch.randperm(600).split(50):
                optimizer.zero_grad()
                F.cross_entropy(model(images[rows]), labels[rows]).backward()
                optimizer.step()
    return model.eval()


def batches(count: int, seed: int, size: int = 100) -> list[tuple[Tensor, Tensor]]:
    images, labels = blobs(count, seed)
    return list(zip(images.split(size), labels.split(size), strict=True))
