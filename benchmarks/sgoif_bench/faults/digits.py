"""A small image folder and a small network: an audit of them takes a few seconds, and most of that is not training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

from sgoif.audit.networks import conv_block

CLASSES = ("zero", "one", "two")
PER_CLASS = 40
MODEL = f"{__name__}:tiny"
"""What `sgoif audit --model` calls the network below."""


def tiny(channels: int, classes: int) -> nn.Module:
    """Has batch norm and dropout, whose state and draws a resumed run must repeat."""
    body = nn.Sequential(conv_block(channels, 8, pool=True), conv_block(8, 16, pool=True))
    return nn.Sequential(body, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, classes))


class _Overflowing(nn.Module):
    def __init__(self, inner: nn.Module, after: int) -> None:
        super().__init__()
        self.inner, self.left = inner, after

    def forward(self, x: object) -> object:
        logits = self.inner(x)
        if self.training:
            self.left -= 1
        return logits * float("nan") if self.left < 0 else logits


def diverging(channels: int, classes: int) -> nn.Module:
    """Its losses are not numbers after a few steps."""
    return _Overflowing(tiny(channels, classes), 5)


def make_folder(folder: Path, per_class: int = PER_CLASS) -> Path:
    """scikit-learn's zeros, ones and twos as PNG files, some of them in the wrong class."""
    from PIL import Image

    from sgoif.errors import MissingExtraError

    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "demo", "The images of `sgoif-bench faults`") from error
    digits = load_digits()
    for label, name in enumerate(CLASSES):
        for number, row in enumerate(np.flatnonzero(digits.target == label)[:per_class].tolist()):
            home = folder / (CLASSES[(label + 1) % len(CLASSES)] if number % 13 == 5 else name)
            home.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray((digits.images[row] * (255 / 16)).astype(np.uint8))
            picture.save(home / f"{name}-{number:03d}.png")
    return folder
