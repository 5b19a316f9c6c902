"""Other intervals for the share of errors, from the same looks: what `sgoif review` was compared with.

Both start from the difference x_i − p'_i of what a look shows and what was expected, with p' recalibrated on the looks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sgoif.tasks.review import ReviewEstimate

Array = np.ndarray[Any, Any]
Ends = tuple[float, float]
POINTS = 201
BOLDEST = 0.75
"""Of the largest bet that cannot lose everything."""


def difference(found: ReviewEstimate, expected: Array) -> Ends:
    """Prediction-powered: mean of p' plus the stratified mean of the differences, with normal quantiles."""
    stratum, weight, gap = _looks(found, expected)
    count = np.bincount(stratum, minlength=len(weight))
    if (count < 2).any():
        return 0.0, 1.0
    mean = np.bincount(stratum, gap, len(weight)) / count
    spread = np.bincount(stratum, (gap - mean[stratum]) ** 2, len(weight)) / (count - 1)
    middle = float(expected.mean() + weight @ mean)
    half = 1.96 * math.sqrt(float(weight**2 @ (spread / count)))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def betting(found: ReviewEstimate, expected: Array) -> Ends:
    """Betting (Waudby-Smith and Ramdas, weighted as by Shekhar et al.): shares that no bettor can reject at 5%.

    Z = mean p' + w (x − p'), where a look in stratum h has the weight w = W_h n / n_h, has the share as its mean. Two
    bettors hold half of the capital each, one that the mean is higher and one that it is lower. p' comes from the same
    looks here, which a bettor may not know: the true interval of this kind is wider still.
    """
    stratum, weight, gap = _looks(found, expected)
    count = np.bincount(stratum, minlength=len(weight))
    if not (count > 0).all():
        return 0.0, 1.0
    each = weight * len(stratum) / count
    values = expected.mean() + each[stratum] * gap
    reach = float(each.max())
    low, high = float(expected.mean()) - reach, float(expected.mean()) + reach
    shares = np.linspace(0, 1, POINTS)
    capital = {side: np.zeros(POINTS) for side in (1, -1)}
    seen = np.array([(low + high) / 2])
    for number, value in enumerate(values, start=1):
        variance = (0.25 * reach**2 + ((seen[1:] - seen.mean()) ** 2).sum()) / number
        bet = math.sqrt(2 * math.log(2 / 0.05) / (variance * len(values)))
        for side, bound in ((1, shares - low), (-1, high - shares)):
            capital[side] += np.log1p(side * np.minimum(bet, BOLDEST / np.maximum(bound, 1e-9)) * (value - shares))
        seen = np.append(seen, value)
    kept = shares[np.logaddexp(capital[1], capital[-1]) - math.log(2) < math.log(1 / 0.05)]
    return (float(kept[0]), float(kept[-1])) if len(kept) else (0.0, 1.0)


def _looks(found: ReviewEstimate, expected: Array) -> tuple[Array, Array, Array]:
    """Stratum of every look in the order of the plan, the weight of every stratum, and x − p' of every look."""
    weight = np.diff([0, *found.plan.ends]) / found.plan.size
    gap = (found.verdict[found.looks] == 1) - expected[found.looks]
    return np.searchsorted(found.plan.ends, found.looks, side="right"), weight, gap


RIVALS: Mapping[str, Any] = {"difference": difference, "betting": betting}
