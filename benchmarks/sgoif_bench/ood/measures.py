"""How well a score tells outliers from in-distribution images. Higher score = more out of distribution.

    AUROC       probability that an outlier scores higher than an in-distribution image, ties counting one half
    AUPR-in     area under the precision–recall curve with in-distribution images as what is to be found
    AUPR-out    the same with outliers as what is to be found
    FPR95       share of the negatives that are taken along where at least 95% of the positives are found

The areas under precision–recall curves are trapezoids between one distinct score and the next, starting at precision 1
and recall 0, as in OpenOOD; average precision (steps) is a little smaller. FPR95 depends on what is positive, so it has
two names: with OOD as positive it counts in-distribution images that are rejected, with ID as positive outliers that
pass. Images with equal scores cannot be told apart and are taken together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import SettingError
from sgoif_bench import metrics
from sgoif_bench.ood.protocol import Group, Positive

Scores = NDArray[np.float64]
RECALL = 0.95
AVERAGED = ("auroc", "aupr_in", "aupr_out", "fpr95")


def auroc(inside: ArrayLike, outside: ArrayLike) -> float:
    """Area under the ROC curve."""
    low, high = _checked(inside), _checked(outside)
    is_outside = np.concatenate([np.zeros(len(low), dtype=bool), np.ones(len(high), dtype=bool)])
    return metrics.auroc(is_outside, np.concatenate([low, high]))


def aupr(positive: ArrayLike, negative: ArrayLike) -> float:
    """Area under the precision–recall curve of finding the positives, which should score higher."""
    wanted, others = _checked(positive), _checked(negative)
    steps = np.unique(np.concatenate([wanted, others]))[::-1]
    found = _at_least(wanted, steps)
    precision = np.append(1.0, found / (found + _at_least(others, steps)))
    recall = np.append(0.0, found / len(wanted))
    return float(np.sum(np.diff(recall) * (precision[1:] + precision[:-1]) / 2))


def fpr_at_recall(positive: ArrayLike, negative: ArrayLike, recall: float = RECALL) -> float:
    """Share of the negatives that score at least as high as the positive at which the recall is first reached."""
    wanted, others = _checked(positive), _checked(negative)
    if not 0 < recall <= 1:
        raise SettingError(f"recall = {recall} must lie in (0, 1]")
    needed = int(np.argmax(np.arange(1, len(wanted) + 1) / len(wanted) >= recall))
    threshold = np.sort(wanted)[::-1][needed]
    return float(np.mean(others >= threshold))


def ood_measures(inside: ArrayLike, outside: ArrayLike, positive: Positive) -> dict[str, float]:
    """All of the above under the names used in result files; `fpr95` is the one of the protocol."""
    low, high = _checked(inside), _checked(outside)
    both = {"fpr95_id_positive": fpr_at_recall(-low, -high), "fpr95_ood_positive": fpr_at_recall(high, low)}
    return {
        "auroc": auroc(low, high),
        "aupr_in": aupr(-low, -high),
        "aupr_out": aupr(high, low),
        "fpr95": both[f"fpr95_{positive}_positive"],
        **both,
    }


def averages(measured: Mapping[str, Mapping[str, float]], groups: Mapping[str, Group]) -> dict[str, float | None]:
    """`near_auroc`, `far_auroc`, `mean_auroc` and so on: means over the sets of a group and over all; None over none.

    `mean` weighs every set the same, whatever its group.
    """
    found: dict[str, float | None] = {}
    for group in ("near", "far", "mean"):
        members = [name for name in measured if group in ("mean", groups[name])]
        for metric in AVERAGED:
            found[f"{group}_{metric}"] = _mean(measured[name][metric] for name in members)
    return found


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _at_least(scores: Scores, steps: Scores) -> Scores:
    """How many scores reach each of these steps."""
    return (len(scores) - np.searchsorted(np.sort(scores), steps, side="left")).astype(np.float64)


def _checked(scores: ArrayLike) -> Scores:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise SettingError(f"scores of shape {values.shape} cannot be compared; expected is a list with one per image")
    if np.isnan(values).any():
        raise SettingError(f"{int(np.isnan(values).sum())} of {len(values)} scores are not numbers")
    return values
