"""Small images and data sets that the tests write for themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, width: int = 16, height: int = 12, mode: str = "RGB") -> Image.Image:
    """Random pixels, different for every seed."""
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def save(image: Image.Image, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path


def class_folder(
    root: Path, classes: Sequence[str] = ("cat", "dog"), each: int = 3, size: tuple[int, int] = (16, 12)
) -> Path:
    """One folder per class with `each` images named 0.png, 1.png, ..."""
    for c, name in enumerate(classes):
        for i in range(each):
            save(picture(100 * c + i, *size), root / name / f"{i}.png")
    return root


def same_pixels(found: Image.Image, expected: Image.Image) -> bool:
    return found.mode == expected.mode and np.array_equal(np.asarray(found), np.asarray(expected))
