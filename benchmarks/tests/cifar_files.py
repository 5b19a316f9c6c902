"""A miniature of CIFAR-10 in its published layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sgoif_bench.cifar import TEST_FILES, TRAIN_FILES


def write_learnable(place: Path) -> Path:
    """Ten classes that differ in brightness by channel: learnable in a few steps. Returns the place."""
    generator = np.random.default_rng(0)
    folder = place / "cifar-10-batches-bin"
    folder.mkdir()
    for name in (*TRAIN_FILES, *TEST_FILES):
        labels = np.arange(60) % 10
        brightness = np.stack([labels * 25, 250 - labels * 25, (labels % 5) * 50], axis=1)
        pixels = np.clip(brightness[:, :, None] + generator.normal(0, 20, (60, 3, 1024)), 0, 255)
        np.concatenate([labels[:, None], pixels.reshape(60, -1)], axis=1).astype(np.uint8).tofile(folder / name)
    return place
