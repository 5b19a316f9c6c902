"""A small problem that every method can be tried on: ten kinds of stripes, some labels wrong."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from sgoif_bench.labels.problem import Problem, Recipe
from sgoif_bench.models import small_cnn
from sgoif_bench.noise import symmetric

SIDE = 12


def striped(
    size: int = 600,
    classes: int = 4,
    rate: float = 0.2,
    epochs: int = 6,
    seed: int = 0,
    anchors: int = 80,
    noise: float = 0.35,
) -> tuple[Problem, NDArray[np.bool_]]:
    """Images of one bright bar per class at its own angle, drowned in noise, and which of their labels are wrong."""
    generator = np.random.default_rng(seed)
    true = generator.integers(0, classes, size)
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] - (SIDE - 1) / 2
    angle = np.pi * true / classes
    shift = generator.uniform(-2, 2, size)
    distance = np.abs(
        np.sin(angle)[:, None, None] * columns + np.cos(angle)[:, None, None] * rows + shift[:, None, None]
    )
    pixels = np.exp(-(distance**2)) + noise * generator.standard_normal((size, SIDE, SIDE))
    images = torch.from_numpy((255 * np.clip(pixels, 0, 1)).astype(np.uint8)).unsqueeze(1)
    labels, wrong = symmetric(true, classes, rate, seed)
    recipe = Recipe(
        model=lambda channels, count: small_cnn(channels, count, width=8),
        epochs=epochs,
        batch_size=64,
        learning_rate=0.2,
        mirror=False,
        padding=1,
        anchors=anchors,
    )
    return Problem(images, labels, classes, recipe, torch.device("cpu"), seed), wrong
