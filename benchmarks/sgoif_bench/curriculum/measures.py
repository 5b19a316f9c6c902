"""The figures of a result line: accuracy at the end and on the way, recall by class, and what wrong labels weighed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif_bench.curriculum.study import Epoch, Weights

LAST = 3
"""Epochs over whose mean the accuracy at the end is also given."""


def minority(sizes: Sequence[int]) -> list[int]:
    """The third of the classes, rounded down but at least one, with the fewest examples; none where all are alike."""
    if max(sizes) < 2 * min(sizes):
        return []
    return sorted(np.argsort(sizes, kind="stable")[: max(1, len(sizes) // 3)].tolist())


def measure(epochs: Sequence[Epoch], is_wrong: NDArray[np.bool_], sizes: Sequence[int]) -> dict[str, Any]:
    """Metrics of a training, and a record of every epoch; `sizes` are those of the true classes of the training set.

    Minority recall is the mean recall of the minority classes, and None where there are none.
    """
    accuracy = [epoch.accuracy for epoch in epochs]
    recall = epochs[-1].recall
    few = minority(sizes)
    shares = [wrong_share(epoch.weights, is_wrong) for epoch in epochs]
    return {
        "metrics": {
            "accuracy": accuracy[-1],
            "accuracy_last": float(np.mean(accuracy[-LAST:])),
            "accuracy_best": max(accuracy),
            "minority_recall": float(np.mean([recall[label] for label in few])) if few else None,
            "worst_recall": float(np.nanmin(recall)),
            "wrong_weight": shares[-1],
        },
        "recall": recall,
        "minority": few,
        "sizes": list(sizes),
        "epochs": [
            {"epoch": number, "accuracy": each, "wrong_weight": share}
            for number, (each, share) in enumerate(zip(accuracy, shares, strict=True), start=1)
        ],
    }


def wrong_share(weights: Weights | None, is_wrong: NDArray[np.bool_]) -> float | None:
    """Share of wrong labels in the total weight; None where the weights are unknown."""
    if weights is None or not weights.any():
        return None
    return float(weights[is_wrong].sum(dtype=np.float64) / weights.sum(dtype=np.float64))
