"""A small world to poison: a bright bar on dim noise, a class for every angle, and a network that knows them."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sgoif_bench.labels.problem import Problem, Recipe
from sgoif_bench.models import small_cnn
from sgoif_bench.poisoning.attacks.attack import Scene
from sgoif_bench.poisoning.attacks.surrogate import Surrogate, trained_surrogate

SIDE, CLASSES = 12, 4
CPU = torch.device("cpu")


def bars(count: int, seed: int, classes: int = CLASSES) -> tuple[torch.Tensor, NDArray[np.int64]]:
    """Images, uint8 [count, 1, SIDE, SIDE], and their labels."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] - (SIDE - 1) / 2
    angle, shift = np.pi * labels / classes, generator.uniform(-2, 2, count)
    across = np.sin(angle)[:, None, None] * columns + np.cos(angle)[:, None, None] * rows + shift[:, None, None]
    pixels = 0.8 * np.exp(-(across**2)) + 0.15 * generator.random((count, SIDE, SIDE))
    return torch.from_numpy((255 * pixels).astype(np.uint8)).unsqueeze(1), labels.astype(np.int64)


def recipe(epochs: int = 3, anchors: int = 20, augment: bool = True) -> Recipe:
    return Recipe(
        model=lambda channels, count: small_cnn(channels, count, width=4),
        epochs=epochs,
        batch_size=32,
        learning_rate=0.2,
        mirror=False,
        padding=1,
        anchors=anchors,
        augment=augment,
    )


def problem(count: int = 240, seed: int = 0, epochs: int = 3, augment: bool = True) -> Problem:
    images, labels = bars(count, seed)
    return Problem(images, labels, CLASSES, recipe(epochs, augment=augment), CPU, seed)


@cache
def surrogate(augment: bool = True) -> Surrogate:
    """Trained once for all tests; nobody changes it."""
    return trained_surrogate(problem(epochs=6, seed=3, augment=augment), lambda message: None)


def scene(seed: int = 0, count: int = 240, with_network: bool = True) -> Scene:
    images, labels = bars(count, 0)
    tests, test_labels = bars(80, 9)
    train = surrogate if with_network else None
    return Scene(images, labels, CLASSES, np.random.default_rng(seed), train, tests, test_labels)


def write_root(root: Path, train: int = 200, test: int = 60) -> Path:
    """The bars as a tiny MNIST of ten classes."""
    for split, count, seed in (("train", train, 1), ("t10k", test, 2)):
        images, labels = bars(count, seed, classes=10)
        folder = root / "MNIST/raw"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = images.squeeze(1).numpy()
        head = struct.pack(">IIII", 0x803, *pixels.shape)
        (folder / f"{split}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        named = struct.pack(">II", 0x801, count) + labels.astype(np.uint8).tobytes()
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(named)
    return root
