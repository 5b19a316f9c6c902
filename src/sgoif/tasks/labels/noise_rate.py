"""How many labels are wrong: three estimators of the literature, and the interval that they leave open.

Labels and a model alone cannot tell a wrong label from a right one that the model does not understand, so no estimator
is right everywhere. Each of these errs in a direction that is known:

- *Disagreement*: the share of held-out labels that are not the likeliest class of a model that never saw them. Mistakes
  of the model are in it too, so it is an upper bound, unless the model has learned the errors themselves.
- *Anchor points* (Liu & Tao 2016; Patrini et al. 2017): the same among the fifth of which the model is surest, class by
  class. There it makes few mistakes. Errors that follow looks are rarer there than elsewhere.
- *Mixture proportion* (Blanchard et al. 2010; as the best bin of Garg et al. 2021): decoys are labels made wrong on
  purpose. If a share π of all labels looked like them, at least π of the examples as suspicious as a decoy would be
  wrong, at every depth of the ranking: π ≤ P(v ≥ q) / P(v_decoy ≥ q). The smallest ratio over the depths that hold half
  of the decoys or more is the largest π that fits. Errors that look less suspicious than decoys are not in it.

    supported = min(mixture proportion, anchor points)        what both say at least; decides how long a list is
    low  = 0.8 · min(mixture proportion, lower end of the anchor points)
    high = upper end of the disagreement

Ends are five percent points by the normal approximation. 0.8 allows for errors that stand out more than decoys do, such
as those between two classes: of 0.5, 0.6, … 1.0 it is the largest with which nine in ten intervals held the truth, on
runs of other data sets each time. Both are zero for a model that knows too little: one that agrees with held-out labels
less than a third of the way from chance to always. Without decoys the lower end of the anchor points stands alone. The
estimate is the mean of the channel's posterior over the held-out examples (`channel`), moved into the interval.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.evidence import Evidence

ALLOWANCE = 0.8
SUREST = 0.2
DEPTH = 0.5
"""Share of the decoys that a depth has to hold at least: a few stand out by chance."""
LEAST_AGREEMENT = 1 / 3
QUANTILE = 1.645
LEAST_DECOYS = 30
"""Fewer say nothing."""


class NoiseRate(NamedTuple):
    """Share of wrong labels: an estimate, and the interval that the estimators leave open."""

    estimate: float
    low: float
    high: float


def noise_rate(
    held_out: Evidence, classes: int, wrong: Array | None, decoys: tuple[Array, Array] | None
) -> tuple[NoiseRate, dict[str, float]]:
    """The rate, and what each estimator says; `supported` is among the latter.

    Args:
        held_out: the held-out examples.
        classes: number of classes.
        wrong: P(wrong) of each by the channel; None where there is none.
        decoys: v of the examples and of the decoys; None without decoys.
    """
    likeliest, probability = held_out.likeliest(classes)
    against, sure = likeliest != held_out.given, surest(probability, likeliest)
    disagreement, anchor_points = float(against.mean()), float(against[sure].mean())
    low = max(0.0, anchor_points - _error(anchor_points, int(sure.sum())))
    high = min(1.0, disagreement + _error(disagreement, len(against)))
    found, supported = {"disagreement": disagreement, "anchor points": anchor_points}, low
    if decoys is not None:
        found["mixture proportion"] = share = mixture_proportion(*decoys)
        low, supported = min(low, share), min(anchor_points, share)
    found["channel"] = disagreement / 2 if wrong is None else float(wrong.mean())
    knows = knows_enough(1 - disagreement, classes)
    found["supported"] = supported if knows else 0.0
    low = min(ALLOWANCE * low, high) if knows else 0.0
    return NoiseRate(float(np.clip(found["channel"], low, high)), low, high), found


def knows_enough(agreement: float, classes: int) -> bool:
    """Whether a model that agrees with so many held-out labels can say that some are surely wrong."""
    return agreement >= 1 / classes + LEAST_AGREEMENT * (1 - 1 / classes)


def surest(probability: Array, likeliest: Labels) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether an example is among the fifth of those with the same likeliest class of which the model is surest."""
    order = np.lexsort((-probability, likeliest))
    count = np.bincount(likeliest)
    first = np.repeat(np.cumsum(count) - count, count)
    chosen = np.zeros(len(likeliest), dtype=bool)
    chosen[order] = np.arange(len(likeliest)) - first < np.repeat(np.ceil(SUREST * count), count)
    return chosen


def mixture_proportion(v: Array, decoys: Array) -> float:
    """The largest share of the examples that may look like decoys, at no depth more than are there."""
    depths = np.sort(decoys)[::-1][int(np.ceil(DEPTH * len(decoys))) - 1 :]
    held = np.arange(len(decoys) - len(depths) + 1, len(decoys) + 1) / len(decoys)
    share = 1 - np.searchsorted(np.sort(v), depths, side="left") / len(v)
    return float(min((share / held).min(), 1.0))


def _error(share: float, count: int) -> float:
    """How far a share among so many may be off to one side."""
    return QUANTILE * float(np.sqrt(share * (1 - share) / count))
