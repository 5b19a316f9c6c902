"""Probabilities of being wrong that agree with the looks, and the lists that follow from them.

Platt's recalibration, logit p' = a + b logit p, with a ~ N(0, 1.5²) and b ~ N(1, 0.5²): without looks p' is p, with
some dozens what was seen decides. Lists rest on it, and estimates of blocks with hardly a look; no interval does.
"""

import numpy as np

from sgoif.core.types import Array
from sgoif.errors import SettingError
from sgoif.tasks.argument_checks import is_share

SPREAD_OF_A, SPREAD_OF_B = 1.5, 0.5
CERTAIN = 0.002
"""No given probability counts as nearer to 0 or 1."""
STEPS, EXACT = 25, 1e-7
HALF = 0.2
"""Without probabilities: the share of the list from which on an example is rather right than wrong."""


def prior_by_rank(size: int) -> Array:
    """Probabilities where none are given: falling down the list."""
    rank = (np.arange(size) + 0.5) / size
    return np.asarray(1 / (1 + (rank / (1 - rank)) * ((1 - HALF) / HALF)))


def recalibrated(probability: Array, looks: Array, wrong: Array) -> Array:
    """The probability of every example after looks at some of them."""
    known = probability[np.isfinite(probability)]
    p = np.clip(np.nan_to_num(probability, nan=float(known.mean()) if len(known) else 0.5), CERTAIN, 1 - CERTAIN)
    score = np.log(p / (1 - p))
    a, b = _fit(score[looks], wrong.astype(np.float64))
    return np.asarray(1 / (1 + np.exp(-(a + b * score))))


def _fit(score: Array, wrong: Array) -> tuple[float, float]:
    """a and b of the highest posterior density, by Newton's method with halved steps; b is not below 0."""
    x = np.stack([np.ones_like(score), score], axis=1)
    mean, precision = np.array([0.0, 1.0]), np.diag([SPREAD_OF_A**-2, SPREAD_OF_B**-2])

    def loss(at: Array) -> float:
        z = x @ at
        return float(np.logaddexp(0, z).sum() - wrong @ z + 0.5 * (at - mean) @ precision @ (at - mean))

    found = mean
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-(x @ found)))
        slope = x.T @ (p - wrong) + precision @ (found - mean)
        step = np.linalg.solve(x.T @ (x * (p * (1 - p))[:, None]) + precision, slope)
        before = loss(found)
        while np.abs(step).max() > EXACT and loss(found - step) > before:
            step = step / 2
        found = found - step
        if np.abs(step).max() <= EXACT:
            break
    return float(found[0]), max(float(found[1]), 0.0)


def length_of_best_f1(probability: Array) -> int:
    """How many from the top to take for the best expected F1, 2 Σ_top p / (k + Σ p)."""
    return int(np.argmax(np.cumsum(probability) / (np.arange(1, len(probability) + 1) + probability.sum()))) + 1


def length_at_fdr(probability: Array, fdr: float) -> int:
    """The longest beginning of which the expected share of right ones is at most `fdr`."""
    if not is_share(fdr):
        raise SettingError(f"fdr={fdr!r} is not valid: expected a share strictly between 0 and 1")
    right = np.cumsum(1 - probability) <= fdr * np.arange(1, len(probability) + 1)
    return int(np.flatnonzero(right)[-1]) + 1 if right.any() else 0
