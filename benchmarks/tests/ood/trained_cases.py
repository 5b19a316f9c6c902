"""Stripes to train on and rings that are outliers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from problems import striped
from torch import Tensor

from sgoif_bench.batches import normalise
from sgoif_bench.labels.problem import Problem

SIDE, TESTED = 12, 200
QUIET: Callable[[str], None] = lambda line: None  # noqa: E731


def clean(size: int = 400, epochs: int = 8, seed: int = 3, **settings: Any) -> Problem:
    """Stripes with right labels."""
    problem, _ = striped(size=size, epochs=epochs, rate=0.0, seed=seed, noise=0.2, **settings)
    return problem


def rings(count: int, seed: int) -> Tensor:
    """Circles as bright and as noisy as the stripes."""
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(float(SIDE)), torch.arange(float(SIDE)), indexing="ij")
    down, across, radius = (4 + 4 * torch.rand(count, 1, 1, generator=generator) for _ in range(3))
    distance = ((y - down) ** 2 + (x - across) ** 2).sqrt() - (radius - 2)
    noise = 0.2 * torch.randn(count, SIDE, SIDE, generator=generator)
    return (255 * ((-(distance**2)).exp() + noise).clamp(0, 1)).to(torch.uint8).unsqueeze(1)


def as_input(problem: Problem, images: Tensor) -> Tensor:
    return normalise(images, problem.mean, problem.spread)
