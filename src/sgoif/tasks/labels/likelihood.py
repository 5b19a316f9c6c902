"""What decoys say about a logistic curve P(wrong | x) = σ(a + b x): its slope, and the noise rate.

`points` are quantiles of x over all examples, `decoys` the x of labels that were made wrong on purpose. The module
`rates` has the likelihood and what is made of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sgoif.tasks.labels.channel import Array

SLOPE, WIDE = 5.0, 0.3
"""Usual slope b, and its logarithmic spread."""
PLAIN = (4.0, 0.6)
"""The same while the rate is unknown and errors are no harder than decoys."""
HARDNESS = 0.5
"""Usual size of θ."""
PREFERENCE = 2.0
"""Power of the rate in its prior."""
LEAST_RATE = 1e-5
RATES: Array = np.concatenate([[LEAST_RATE, 1e-4], np.geomspace(1e-3, 0.75, 60)])
"""Rates that are tried first."""
FINE, NEGLIGIBLE = 32, 1e-3
"""Rates that are tried then, a third as many slopes, and the weight that is left out of them."""


class NoiseRate(NamedTuple):
    """Share of wrong labels, with an interval that spans the estimators and their sampling error."""

    estimate: float
    low: float
    high: float


def sigmoid(a: Array) -> Array:
    """1 / (1 + e^−a), without overflow; in place, since most of the time of a judgement is spent here."""
    out: Array = np.asarray(np.clip(a, -60.0, 60.0))
    np.exp(np.negative(out, out), out)
    out += 1
    return np.reciprocal(out, out)


def offset(points: Array, slope: float, rate: float, share: Array | float = 1.0) -> float:
    """a such that the mean of σ(a + b x) over the points is the rate; each point may count for a share only."""
    low, high = -200.0, 200.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if (share * sigmoid(middle + slope * points)).mean() > rate else (middle, high)
    return (low + high) / 2


def offsets(points: Array, slope: float, rates: Array) -> Array:
    """The same for many rates at once: a table of means says between which two offsets each lies.

    The mean of σ(a + x) lies between σ(a + min x) and σ(a + max x), so that the table is short.
    """
    x, table = slope * points, np.linspace(-200.0, 200.0, 401)
    ends = np.log(rates.min() / (1 - rates.min())) - x.max(), np.log(rates.max() / (1 - rates.max())) - x.min()
    first, last = np.searchsorted(table, ends) - (1, 0)
    first = min(max(first, 0), len(table) - 2)
    table = table[first : max(last, first + 1) + 1]
    means = sigmoid(table[:, None] + x).mean(1)
    upper = np.clip(np.searchsorted(means, rates), 1, len(table) - 1)
    low, high = table[upper - 1], table[upper]
    for _ in range(12):
        middle = (low + high) / 2
        above = sigmoid(middle[:, None] + x).mean(1) > rates
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    out: Array = (low + high) / 2
    return out


def slope_at(points: Array, decoys: Array, rate: float, classes: int) -> float:
    """b at a known rate: the likelihood of the decoys, with a wide prior around the usual slope."""
    right = rate / (classes - 1)

    def loss(slope: float) -> float:
        p = sigmoid(offset(points, slope, rate) + slope * decoys)
        likelihood = np.log((1 - right) * p / rate + right * (1 - p) / (1 - rate) + 1e-300).sum()
        return float(-likelihood + 0.5 * (np.log(slope / SLOPE) / WIDE) ** 2)

    grid = np.geomspace(0.5, 20, 40)
    best = int(np.argmin([loss(b) for b in grid]))
    fine = np.linspace(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)], 15)
    return float(fine[int(np.argmin([loss(b) for b in fine]))])


def rate_by_decoys(points: Array, decoys: Array, classes: int, centre: float, spread: float) -> float:
    """The rate by the likelihood of the decoys: the mean of its logarithm over rates, slopes and θ.

    Slopes have a log-normal prior of this centre and spread.
    """
    rates, weight = _posterior(points, decoys, classes, centre, spread, np.linspace(0, 1.5, 16))
    return float(np.exp((weight * np.log(rates)).sum()))


def plain_rate(points: Array, decoys: Array, classes: int) -> NoiseRate:
    """The same where errors are no harder than decoys, with a 90% interval."""
    rates, weight = _posterior(points, decoys, classes, *PLAIN, np.zeros(1))
    low, high = np.exp(np.interp([0.05, 0.95], np.cumsum(weight) - weight / 2, np.log(rates)))
    return NoiseRate(float(np.exp((weight * np.log(rates)).sum())), float(low), float(high))


def _posterior(
    points: Array, decoys: Array, classes: int, centre: float, spread: float, hardness: Array
) -> tuple[Array, Array]:
    """Rates, evenly spaced on a logarithmic scale where it matters, and the weight of each; weights sum to one.

    A few hundred decoys know the rate to some percent, which is less than the distance of any grid that spans all
    rates. So a first grid says where the likelihood lies, and a second one resolves it.
    """
    points = points[:: max(1, len(points) // 1000)]

    def weights(rates: Array, slopes: Array, hardness: Array) -> Array:
        losses = _losses(points, decoys, classes, rates, slopes, hardness)
        losses += 0.5 * (np.log(slopes[:, None] / centre) / spread) ** 2 + 0.5 * (hardness / HARDNESS) ** 2
        # Where wrong labels stand well apart, any smaller rate explains the decoys as well, by right labels among them.
        # The prior prefers the largest rate that does.
        out: Array = np.exp(losses.min() - losses) * rates[:, None, None] ** PREFERENCE
        return out

    slopes = centre * np.exp(spread * np.linspace(-2.5, 2.5, 9))
    first = weights(RATES, slopes, hardness[::2])
    rates = _finer(RATES, first.sum((1, 2)), FINE)
    weight = weights(rates, _finer(slopes, first.sum((0, 2)), FINE // 3), hardness).sum((1, 2))
    return rates, weight / weight.sum()


def _finer(grid: Array, weight: Array, count: int) -> Array:
    """A grid of so many points where the weight of another one lies."""
    some = np.flatnonzero(weight > NEGLIGIBLE * weight.max())
    out: Array = np.geomspace(grid[max(some[0] - 1, 0)], grid[min(some[-1] + 1, len(grid) - 1)], count)
    return out


def _losses(points: Array, decoys: Array, classes: int, rates: Array, slopes: Array, hardness: Array) -> Array:
    """Minus the logarithm of the likelihood of the decoys, [rates, slopes, θ]."""
    top = points.max()
    tilt, own_tilt = np.exp(np.outer(points - top, hardness)), np.exp(np.outer(hardness, decoys - top))
    right = (rates / (classes - 1))[:, None, None]
    out = np.empty((len(rates), len(slopes), len(hardness)))
    for j, slope in enumerate(slopes):
        level = offsets(points, float(slope), rates)[:, None]
        total = np.maximum(sigmoid(level + slope * points) @ tilt / len(points), 1e-300)[:, :, None]
        own = sigmoid(level + slope * decoys)[:, None, :]
        density = (1 - right) * own_tilt * own / total + right * (1 - own) / (1 - rates[:, None, None])
        out[:, j] = -np.log(density + 1e-300).sum(2)
    return out
