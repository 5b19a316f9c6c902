"""Ranked lists with known errors: rankings from random to perfect, priors from good to badly wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def ranked_errors(size: int, rate: float, separation: float, seed: int = 0) -> tuple[Array, Array]:
    """Truth in the order of a list, and a fair prior; with separation 0 the ranking is random, below it upside down."""
    draws = np.random.default_rng(seed)
    wrong = np.zeros(size, dtype=bool)
    wrong[draws.permutation(size)[: round(rate * size)]] = True
    score = separation * wrong + draws.normal(size=size)
    order = np.argsort(-score)
    odds = np.log(max(rate, 1e-3) / (1 - max(rate, 1e-3))) + separation * (score - separation / 2)
    return wrong[order], 1 / (1 + np.exp(-odds[order]))


def decisions(positions: Any, wrong: Array) -> dict[int, bool]:
    """What a person who is always right says about these positions."""
    return {int(position): bool(wrong[position]) for position in positions}
