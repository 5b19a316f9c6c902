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
