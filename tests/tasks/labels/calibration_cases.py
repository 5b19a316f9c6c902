"""Simulated runs whose truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgoif.tasks.labels.channel import Array
from sgoif.tasks.labels.evidence import Evidence, Rows


def mixture(
    rate: float, *, count: int = 20_000, apart: float = 3.5, seed: int = 0
) -> tuple[Array, np.ndarray[Any, Any]]:
    """v of right labels ~ N(0, 1), of wrong ones ~ N(apart, 1); which are wrong."""
    random = np.random.default_rng(seed)
    wrong = random.random(count) < rate
    return random.normal(size=count) + apart * wrong, wrong


def known(count: int, right: float, seed: int = 0, classes: int = 4, first: int = 0) -> Evidence:
    """Examples of which a share has its own class as the likeliest one."""
    random = np.random.default_rng(seed)
    label = np.arange(count) % classes
    top = np.where(np.arange(count) < right * count, label, (label + 1) % classes)
    sure = random.uniform(0.85, 0.95, count)
    p = np.repeat((1 - sure)[:, None] / (classes - 1), classes, axis=1)
    p[np.arange(count), top] = sure
    v = np.where(top == label, 1.0, -1.0) + 0.1 * random.normal(size=count)
    groups = np.where(np.eye(classes)[top] > 0, 1.0, -1.0)
    return Evidence(first + np.arange(count), label, -v, v, v, -v, Rows(groups), Rows(p))
