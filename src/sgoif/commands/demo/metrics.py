"""How well a score finds the wrong labels; benchmarks measure the same in more ways."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SHARE = 0.01


def detection_metrics(is_wrong: NDArray[np.bool_], score: NDArray[np.float64]) -> dict[str, float]:
    """Precision in the most suspicious hundredth, and areas under two curves; higher score = more suspicious.

    Equal scores are one step: the curves go from one distinct score to the next, and where a list is cut inside a tie,
    the tied examples count with the share of them that fits.
    """
    order = np.argsort(-score, kind="stable")
    ordered: NDArray[Any] = score[order]
    ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(order) - 1)
    taken, found = ends + 1.0, np.cumsum(is_wrong[order])[ends].astype(np.float64)
    true_rate, false_rate = (np.append(0.0, some / some[-1]) for some in (found, taken - found))
    first = max(1, round(SHARE * len(order)))
    return {
        "p_at_1": float(np.interp(first, [0.0, *taken], [0.0, *found])) / first,
        "aupr": float(np.sum(np.diff(found, prepend=0.0) * found / taken) / found[-1]),
        "auroc": float(np.sum(np.diff(false_rate) * (true_rate[1:] + true_rate[:-1]) / 2)),
    }
