"""Figures of a run: how well changes were predicted, how much of the way a removal goes, how tight certificates are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.tasks.unlearning.influence import LEVEL

PREDICTIONS = ("first_order", "influence", "newton", "removal")
"""Additive first order, the influence step, one Newton step, and the removal as it is shipped."""
MOST_OF_THE_WAY = 0.8
NORMAL = NormalDist().inv_cdf(0.5 + LEVEL / 2)
Record = Mapping[str, Any]
Array = NDArray[np.float64]


def pearson(x: ArrayLike, y: ArrayLike) -> float | None:
    """Correlation; None where one side does not vary."""
    a, b = (np.asarray(v, dtype=np.float64) - np.mean(np.asarray(v, dtype=np.float64)) for v in (x, y))
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / scale) if scale > 0 else None


def ranks(values: ArrayLike) -> Array:
    """Ranks from 1 along the first axis, of equal values the mean."""
    found = np.asarray(values, dtype=np.float64)
    order = np.argsort(found, axis=0, kind="stable")
    ordered, edge = np.take_along_axis(found, order, 0), np.ones((1, *found.shape[1:]), dtype=bool)
    differs = ordered[1:] != ordered[:-1]
    place = np.arange(1.0, len(found) + 1).reshape(-1, *[1] * (found.ndim - 1))
    first = np.maximum.accumulate(np.where(np.concatenate([edge, differs]), place, 0), axis=0)
    last = np.minimum.accumulate(np.where(np.concatenate([differs, edge]), place, np.inf)[::-1], axis=0)[::-1]
    ranked = np.empty_like(found)
    np.put_along_axis(ranked, order, (first + last) / 2, 0)
    return ranked


def spearman(x: ArrayLike, y: ArrayLike) -> float | None:
    """Correlation of the ranks; None where one side does not vary."""
    return pearson(ranks(x), ranks(y))


def column(records: Sequence[Record], *path: str) -> Array:
    """One figure of every deletion."""
    found: list[float] = []
    for record in records:
        value: Any = record
        for name in path:
            value = value[name]
        found.append(float(value))
    return np.array(found)


def columns(records: Sequence[Record]) -> dict[str, Any]:
    """The same as lists, one per figure, as they are written down."""
    return {
        name: columns([record[name] for record in records])
        if isinstance(value, Mapping)
        else [record[name] for record in records]
        for name, value in records[0].items()
    }


def summarised(records: Sequence[Record]) -> dict[str, Any]:
    """The figures of some deletions."""
    real = column(records, "retrained")
    return {
        "deletions": len(records),
        "spearman": {name: spearman(column(records, "predicted", name), real) for name in PREDICTIONS},
        "pearson": {name: pearson(column(records, "predicted", name), real) for name in PREDICTIONS},
        "closed": {name: shares(column(records, "closed", name)) for name in PREDICTIONS[1:]},
        "certificate": {name: certificates(records, name) for name in PREDICTIONS[1:]},
        "interval": {name: intervals(records, name) for name in PREDICTIONS[1:]},
        "flips": {name: flips(records, name) for name in PREDICTIONS[1:]},
        "steps": float(column(records, "steps").mean()),
        "seconds": {name: float(np.median(column(records, "seconds", name))) for name in records[0]["seconds"]},
    }


def shares(closed: Array) -> dict[str, float]:
    """Of the distance to the retrained head that was closed."""
    return {
        "mean": float(closed.mean()),
        "median": float(np.median(closed)),
        "least": float(closed.min()),
        "most_of_the_way": float((closed >= MOST_OF_THE_WAY).mean()),
    }


def certificates(records: Sequence[Record], name: str) -> dict[str, float]:
    """Bounds beside true distances; where the removal is as exact as retraining there is no distance to compare."""
    bound, distance = column(records, "bound", name), column(records, "distance", name)
    slack = column(records, "slack")
    ratio = bound / np.maximum(distance, np.finfo(float).tiny)
    return {
        "broken": int((distance > bound + slack).sum()),
        "median_ratio": float(np.median(ratio)),
        "least_ratio": float(ratio.min()),
        "median_bound": float(np.median(bound)),
    }


def intervals(records: Sequence[Record], name: str) -> dict[str, float]:
    """How often the retrained change lies in the interval, how wide that is, and the same for other data."""
    real, test = column(records, "retrained"), column(records, "retrained_test")
    slack = column(records, "loss_slack")
    low, high = column(records, "low", name), column(records, "high", name)
    guess, chance = column(records, "predicted", name), NORMAL * column(records, "test_error")
    # The test set is a sample too, so its own error belongs into the comparison.
    below = np.hypot(guess - column(records, "population_low", name), chance)
    above = np.hypot(column(records, "population_high", name) - guess, chance)
    return {
        "coverage": float(((real >= low - slack) & (real <= high + slack)).mean()),
        "median_width": float(np.median(high - low)),
        "median_relative_width": float(np.median((high - low) / np.maximum(np.abs(real), np.finfo(float).tiny))),
        "population_coverage": float(((test >= guess - below) & (test <= guess + above)).mean()),
    }


def flips(records: Sequence[Record], name: str) -> dict[str, Any]:
    """Predictions that change: announced, real, both; and those called certain that were not."""
    announced, right = column(records, "announced", name).sum(), column(records, "announced_right", name).sum()
    real = column(records, "flipped").sum()
    return {
        "announced": int(announced),
        "real": int(real),
        "right": int(right),
        "precision": float(right / announced) if announced else None,
        "recall": float(right / real) if real else None,
        "certain_but_wrong": int(column(records, "certain_wrong", name).sum()),
    }
