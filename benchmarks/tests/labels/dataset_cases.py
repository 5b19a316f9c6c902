"""Small data sets in the layouts of the real ones, and which files are opened."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 16
Pixels = NDArray[np.uint8]
OPENED: list[str] | None = None


def _remember(event: str, arguments: tuple[Any, ...]) -> None:
    if OPENED is not None and event == "open" and isinstance(arguments[0], str):
        OPENED.append(os.path.abspath(arguments[0]))


sys.addaudithook(_remember)


@contextmanager
def opened_below(folder: Path) -> Iterator[Callable[[], list[str]]]:
    """Every file below the folder that anything in this process opens, by whatever call, once per time."""
    global OPENED
    OPENED = []
    try:
        yield lambda: [path for path in OPENED or [] if path.startswith(f"{folder}/") and "sgoif-cache" not in path]
    finally:
        OPENED = None


def quiet(_: str) -> None:
    """Hears everything, says nothing."""


def pixels(seed: int, *shape: int) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def picture(path: Path, seed: int, width: int = 20, height: int = 16) -> None:
    """A lossless image of one colour with a little noise, under whatever name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    base = np.array([seed * 40 % 256, seed * 70 % 256, seed * 110 % 256])
    noise = pixels(seed, height, width, 3) % 8
    Image.fromarray(((base + noise) % 256).astype(np.uint8)).save(path, format="PNG")
