"""How well a score finds the wrong labels. Higher score = more suspicious; `is_wrong` marks what is to be found.

Let the examples be sorted by falling score. Examples with equal scores cannot be told apart, so every measure treats
them as one step: the curves move from one distinct score to the next, and where a list is cut inside a tie, the tied
examples count with the share of them that fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
SHARES = (0.01, 0.05, 0.10)


def average_precision(is_wrong: ArrayLike, score: ArrayLike) -> float:
    """Area under the precision–recall curve, Σ_n (R_n − R_{n−1}) P_n over distinct scores (no interpolation)."""
    wrong, suspicion = checked(is_wrong, score)
    found, taken = cumulative(wrong, suspicion)
    gained = np.diff(found, prepend=0.0)
    return float(np.sum(gained * found / taken) / found[-1])


def auroc(is_wrong: ArrayLike, score: ArrayLike) -> float:
    """Probability that a wrong label scores higher than a right one, ties counting one half."""
    wrong, suspicion = checked(is_wrong, score)
    found, taken = cumulative(wrong, suspicion)
    kept = taken - found
    if kept[-1] == 0:
        raise SettingError("every label is marked wrong: AUROC needs right labels to compare with")
    true_rate, false_rate = np.append(0.0, found / found[-1]), np.append(0.0, kept / kept[-1])
    return float(np.sum(np.diff(false_rate) * (true_rate[1:] + true_rate[:-1]) / 2))


def precision_at(is_wrong: ArrayLike, score: ArrayLike, share: float = 0.01) -> float:
    """Share of wrong labels among the most suspicious `share` of all examples (at least one example)."""
    wrong, suspicion = checked(is_wrong, score)
    size = cut(len(wrong), share)
    return _found_within(wrong, suspicion, size) / size


def recall_at(is_wrong: ArrayLike, score: ArrayLike, shares: Sequence[float] = SHARES) -> dict[float, float]:
    """For each share of all examples inspected, the share of the wrong labels that is found."""
    wrong, suspicion = checked(is_wrong, score)
    total = float(wrong.sum())
    return {share: _found_within(wrong, suspicion, cut(len(wrong), share)) / total for share in shares}


def detection_metrics(is_wrong: ArrayLike, score: ArrayLike) -> dict[str, Any]:
    """All of the above under the names used in result files."""
    recall: Mapping[float, float] = recall_at(is_wrong, score)
    return {
        "p_at_1": precision_at(is_wrong, score, 0.01),
        "aupr": average_precision(is_wrong, score),
        "auroc": auroc(is_wrong, score),
        **{f"recall_at_{100 * share:g}": value for share, value in recall.items()},
    }


def checked(is_wrong: ArrayLike, score: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """The two lists as arrays; what cannot be compared is refused."""
    wrong, suspicion = np.asarray(is_wrong, dtype=bool), np.asarray(score, dtype=np.float64)
    if wrong.ndim != 1 or wrong.shape != suspicion.shape:
        raise SettingError(f"is_wrong {wrong.shape} and score {suspicion.shape} must be two lists of the same length")
    if not wrong.any():
        raise SettingError("no label is marked wrong: there is nothing to find")
    if np.isnan(suspicion).any():
        raise SettingError(
            f"{int(np.isnan(suspicion).sum())} scores are not numbers; leave those examples out, "
            "or give them -inf to rank them last"
        )
    return wrong, suspicion


def cumulative(
    wrong: NDArray[np.bool_], suspicion: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Wrong labels found, and examples taken, down to and including each distinct score."""
    order = np.argsort(-suspicion, kind="stable")
    ordered = suspicion[order]
    ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)
    found = np.cumsum(wrong[order])[ends].astype(np.float64)
    return found, (ends + 1).astype(np.float64)


def cut(count: int, share: float) -> int:
    """How many examples a share of them is, at least one."""
    if not 0 < share <= 1:
        raise SettingError(f"share = {share} must lie in (0, 1]")
    return max(1, round(share * count))


def _found_within(wrong: NDArray[np.bool_], suspicion: NDArray[np.float64], size: int) -> float:
    """Expected number of wrong labels among the first `size`, ties being in random order."""
    found, taken = cumulative(wrong, suspicion)
    return float(np.interp(size, np.append(0.0, taken), np.append(0.0, found)))


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
