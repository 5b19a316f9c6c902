"""From a ranking to the probability that each label is wrong.

    P(wrong | v) = σ(a + b x),        x = (v − median) / deviation

The noise rate fixes a: it is the mean of P. With the rate that is supported (`noise_rate`) P is what is surely so, with
both ends of its interval what may be. The slope b says how well the ranking parts wrong labels from right ones. The
channel's P(wrong) of the held-out examples, on their own v, gives it by logistic regression. Decoys give another: if P
held and a share π of the labels was wrong, their density would be proportional to P f, f being that of all examples,
and b is where they are likeliest. Decoys are wrong in a way that is easily seen, doubtful labels are many among the
held-out examples: with decoys b is the mean of both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sgoif.tasks.labels.channel import Array, Labels

POINTS = 1001
"""Quantiles of x that stand for all examples."""
SLOPES: Array = np.geomspace(0.25, 20.0, 60)


@dataclass(frozen=True)
class Curve:
    """P(wrong | v) at any noise rate."""

    centre: float
    deviation: float
    slope: float
    points: Array

    @classmethod
    def fitted(cls, v: Array, rate: float, held_out: tuple[Array, Array], decoys: Array | None) -> Curve:
        """The curve of examples with these v.

        `held_out` are v and P(wrong) by the channel of the held-out examples, `decoys` are v of the decoys.
        """
        centre, deviation = float(np.median(v)), float(v.std()) or 1.0
        points = np.quantile((v - centre) / deviation, np.linspace(0, 1, POINTS))
        slopes = [slope_of_probabilities((held_out[0] - centre) / deviation, held_out[1])]
        if decoys is not None:
            slopes.append(slope_of_decoys(points, (decoys - centre) / deviation, rate))
        return cls(centre, deviation, float(np.mean(slopes)), points)

    def probability(self, v: Array, rate: float) -> Array:
        """P(wrong | v) where so many labels are wrong in all."""
        if rate <= 0:
            return np.zeros(len(v))
        x = (v - self.centre) / self.deviation
        return sigmoid(offset(self.points, self.slope, rate) + self.slope * x)


def sigmoid(a: Array) -> Array:
    """1 / (1 + e^−a), without overflow."""
    out: Array = 1 / (1 + np.exp(-np.clip(a, -60.0, 60.0)))
    return out


def offset(points: Array, slope: float, rate: float) -> float:
    """a such that the mean of σ(a + b x) over the points is the rate."""
    low, high = -200.0, 200.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if sigmoid(middle + slope * points).mean() > rate else (middle, high)
    return (low + high) / 2


def slope_of_probabilities(x: Array, wrong: Array) -> float:
    """b of the logistic regression of probabilities on x; among the slopes that are tried."""
    target = float(wrong.mean())
    if not 0 < target < 1:
        return float(np.median(SLOPES))

    def loss(slope: float) -> float:
        z = offset(x, slope, target) + slope * x
        return float(np.mean(np.logaddexp(0, z) - wrong * z))

    return float(SLOPES[np.argmin([loss(slope) for slope in SLOPES])])


def slope_of_decoys(points: Array, decoys: Array, rate: float) -> float:
    """b under which such decoys are likeliest."""
    rate = max(rate, 1 / len(points))

    def likelihood(slope: float) -> float:
        return float(np.log(sigmoid(offset(points, slope, rate) + slope * decoys) + 1e-300).mean())

    return float(SLOPES[np.argmax([likelihood(slope) for slope in SLOPES])])


def selected_at(probability: Array, fdr: float) -> Labels:
    """The longest list, most probable first, whose expected share of right labels is at most `fdr`."""
    order = np.argsort(-probability, kind="stable")
    false = np.cumsum(1 - probability[order]) / np.arange(1, len(order) + 1)
    within = np.flatnonzero(false <= fdr)
    chosen: Labels = order[: within[-1] + 1 if len(within) else 0]
    return chosen
