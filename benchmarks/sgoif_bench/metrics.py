"""How well a score finds the wrong labels. Higher score = more suspicious; `is_wrong` marks what is to be found.

Let the examples be sorted by falling score. Examples with equal scores cannot be told apart, so every measure treats
them as one step: the curves move from one distinct score to the next, and where a list is cut inside a tie, the tied
examples count with the share of them that fits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.commands.demo.metrics import (
    auroc,
    average_precision,
    checked,
    cumulative,
    cut,
    detection_metrics,
    precision_at,
    recall_at,
)
from sgoif.errors import SettingError

__all__ = [
    "auroc",
    "average_precision",
    "detection_metrics",
    "expected_calibration_error",
    "flag_metrics",
    "precision_at",
    "precision_recall_curve",
    "recall_at",
    "top_kendall",
]

BINS = 15
"""Equal bins of probability in which stated and real shares are compared."""
CURVE_POINTS = 101


def flag_metrics(is_wrong: ArrayLike, flagged: ArrayLike) -> dict[str, float | None]:
    """Precision, recall and F1 = 2·TP / (2·TP + FP + FN) of a set of examples that was called wrong.

    What is undefined is None: precision where nothing was flagged, recall and F1 where nothing is wrong.
    """
    wrong, called = np.asarray(is_wrong, dtype=bool), np.asarray(flagged, dtype=bool)
    if wrong.ndim != 1 or wrong.shape != called.shape:
        raise SettingError(f"is_wrong {wrong.shape} and flagged {called.shape} must be two lists of the same length")
    caught, taken, total = int((wrong & called).sum()), int(called.sum()), int(wrong.sum())
    return {
        "precision": caught / taken if taken else None,
        "recall": caught / total if total else None,
        "f1": 2 * caught / (taken + total) if total else None,
    }


def precision_recall_curve(is_wrong: ArrayLike, score: ArrayLike, points: int = CURVE_POINTS) -> dict[str, list[float]]:
    """The precision at which each of so many evenly spaced recalls from 0 to 1 is first reached, without smoothing.

    The list grows from one distinct score to the next; at recall 0 stands the precision of the first of these steps.
    """
    wrong, suspicion = checked(is_wrong, score)
    found, taken = cumulative(wrong, suspicion)
    recall = np.linspace(0.0, 1.0, points)
    # Rounding must not turn "three of ten" into a recall just below 0.3.
    step = np.searchsorted(found, recall * found[-1] - 1e-9)
    return {"recall": recall.round(6).tolist(), "precision": (found / taken)[step].round(6).tolist()}


def top_kendall(previous: ArrayLike, current: ArrayLike, share: float = 0.01) -> float:
    """Kendall's τ_b between two scores over the examples that lie in the top `share` of either.

    The union of both tops is compared, so an example that falls out of the top costs agreement; a score that ties with
    the last place of a top belongs to it. τ_b = (C − D) / √((P − T₁)(P − T₂)) over all P pairs, of which C agree, D
    disagree and T₁, T₂ tie in the one and in the other score. Not a number where a score ties everywhere in the union.
    """
    first, second = np.asarray(previous, dtype=np.float64), np.asarray(current, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape or not len(first):
        raise SettingError(f"two lists of the same length are compared, not {first.shape} and {second.shape}")
    if np.isnan(first).any() or np.isnan(second).any():
        raise SettingError("some scores are not numbers; give those examples -inf to rank them last")
    size = cut(len(first), share)
    either = (first >= np.sort(first)[-size]) | (second >= np.sort(second)[-size])
    return _kendall(_ranks(first[either]), _ranks(second[either]))


def _kendall(x: NDArray[np.int64], y: NDArray[np.int64]) -> float:
    pairs = len(x) * (len(x) - 1) // 2
    tied_x, tied_y, tied_both = (_tied_pairs(ranks) for ranks in (x, y, x * (len(x) + 1) + y))
    if pairs in (tied_x, tied_y):
        return float("nan")
    against = _inversions(y[np.lexsort((y, x))])
    agree = pairs - tied_x - tied_y + tied_both - against
    return (agree - against) / float(np.sqrt(float(pairs - tied_x)) * np.sqrt(float(pairs - tied_y)))


def _ranks(score: NDArray[np.float64]) -> NDArray[np.int64]:
    """0, 1, 2, … by rising score, equal scores sharing one."""
    return np.unique(score, return_inverse=True)[1].astype(np.int64)


def _tied_pairs(ranks: NDArray[np.int64]) -> int:
    sizes = np.unique(ranks, return_counts=True)[1].astype(np.int64)
    return int((sizes * (sizes - 1) // 2).sum())


def _inversions(ranks: NDArray[np.int64]) -> int:
    """Pairs in which the earlier number is the larger.

    Two such numbers agree in their leading bits up to the one where the earlier has a 1 and the later a 0. So for every
    bit, count the ones before each zero among the numbers that agree in all bits above.
    """
    count = 0
    for bit in range(int(ranks.max(initial=0)).bit_length()):
        above = ranks >> (bit + 1)
        order = np.argsort(above, kind="stable")
        group, ones = above[order], (ranks[order] >> bit) & 1
        before = np.cumsum(ones) - ones
        start = np.searchsorted(group, group)
        count += int((before - before[start])[ones == 0].sum())
    return count


def expected_calibration_error(p: NDArray[np.float64], outcome: NDArray[np.bool_]) -> float:
    """Mean distance between stated and real share over equal bins, weighed by their size."""
    number = np.minimum((p * BINS).astype(int), BINS - 1)
    size = np.bincount(number, minlength=BINS)
    stated = np.bincount(number, weights=p, minlength=BINS)
    real = np.bincount(number, weights=outcome.astype(np.float64), minlength=BINS)
    return float(np.abs(stated - real).sum() / size.sum())
