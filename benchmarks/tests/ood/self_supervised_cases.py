"""Small striped problems and pictures for methods that change images."""

from __future__ import annotations

import dataclasses

import torch
from problems import striped
from torch import Tensor

from sgoif_bench.labels.problem import Problem

SIDE = 12


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stripes(size: int = 256, epochs: int = 4, seed: int = 3, batch_size: int = 64) -> Problem:
    problem: Problem = striped(size=size, epochs=epochs, rate=0.0, seed=seed, noise=0.1, anchors=20)[0]
    return dataclasses.replace(problem, recipe=dataclasses.replace(problem.recipe, batch_size=batch_size))


def pictures(count: int = 6, channels: int = 3, side: int = SIDE, seed: int = 1) -> Tensor:
    return torch.rand(count, channels, side, side, generator=seeded(seed))
