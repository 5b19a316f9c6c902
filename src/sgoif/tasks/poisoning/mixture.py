"""Whether a few values stand apart above the others: two normal distributions, the upper one smaller.

    f(v) = (1 − π) N(v; μ₀, σ₀²) + π N(v; μ₁, σ₁²),      μ₁ > μ₀,  π ≤ ½

fitted by expectation-maximisation from several starts, of which the likeliest fit is kept. How far the two stand apart:

    separation   (μ₁ − μ₀)/σ₀                    in spreads of the bulk
    contrast     √2 (μ₁ − μ₀)/√(σ₀² + σ₁²)       Ashman's D: above 2 two modes can be told apart at all

A posterior that falls again beyond μ₁ would be an artefact of a narrow upper component, so it is made to rise with v.
Many values are counted in bins first, and several lists of values are fitted at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
STARTS = (0.90, 0.97, 0.995)
"""Quantiles at which the upper mode may begin."""
FIRST_SHARE = 0.05
ROUNDS, SETTLED = 300, 1e-4
"""Most rounds of a fit, and how little μ₁ moves in the last."""
LEAST_SHARE, MOST_SHARE = 1e-4, 0.5
FLOOR = 0.2
"""Least σ₁ and σ₀ in robust spreads of all values; a mode of one point would be infinitely likely."""
BINS = 512
"""More values than this are counted in so many bins."""
MAD = 1.4826
LARGEST_EXPONENT = 500.0


@dataclass(frozen=True)
class Mixture:
    """A bulk and a smaller mode above it."""

    share: float
    """π"""
    bulk: float
    """μ₀"""
    bulk_spread: float
    mode: float
    """μ₁"""
    mode_spread: float

    @property
    def separation(self) -> float:
        return (self.mode - self.bulk) / self.bulk_spread

    @property
    def contrast(self) -> float:
        return float(np.sqrt(2) * (self.mode - self.bulk) / np.hypot(self.bulk_spread, self.mode_spread))

    @property
    def distinctness(self) -> float:
        """Separation × contrast: large only where a mode is both far away and narrow."""
        return max(0.0, self.separation) * max(0.0, self.contrast)

    def posterior(self, values: Values) -> Values:
        """Probability that each value belongs to the upper mode; rises with the value."""
        upper = np.log(self.share) - 0.5 * ((values - self.mode) / self.mode_spread) ** 2 - np.log(self.mode_spread)
        lower = np.log1p(-self.share) - 0.5 * ((values - self.bulk) / self.bulk_spread) ** 2 - np.log(self.bulk_spread)
        found = _logistic(upper - lower)
        found[values <= self.bulk] = 0.0
        order = np.argsort(values, kind="stable")
        rising: Values = np.empty_like(found)
        rising[order] = np.maximum.accumulate(found[order])
        return rising


def robust_units(values: Values, like: Values | None = None) -> Values:
    """Values about their median, in units of their median deviation; or about and in units of those of others."""
    reference = values if like is None else like
    middle = np.median(reference)
    spread = MAD * np.median(np.abs(reference - middle))
    if spread <= 0:
        spread = float(np.std(reference)) or 1.0
    units: Values = (values - middle) / spread
    return units


def fit_mixture(values: Values, starts: Sequence[float] = ()) -> Mixture:
    """The likeliest mixture of values that are in robust units; `starts` are further guesses of μ₁."""
    return fit_mixtures(values[None], starts)[0]


def fit_mixtures(
    values: Values, starts: Sequence[float] = (), *, rounds: int = ROUNDS, bins: int = BINS
) -> list[Mixture]:
    """The likeliest mixture of every row of values [m, n] that are in robust units."""
    rows = len(values)
    points, weights = _binned(values, bins)
    guesses = [np.quantile(values, q, axis=1) for q in STARTS]
    guesses += [np.full(rows, float(start)) for start in starts]
    copies = (len(guesses), 1)
    parameters, likelihood = _maximise_likelihood(
        np.tile(points, copies), np.tile(weights, copies), np.concatenate(guesses), rounds
    )
    best = likelihood.reshape(-1, rows).argmax(axis=0) * rows + np.arange(rows)
    return [Mixture(*map(float, column)) for column in parameters[:, best].T]


def _binned(values: Values, bins: int) -> tuple[Values, Values]:
    """Points and weights that stand for the values of every row."""
    rows, count = values.shape
    if count <= bins:
        return values, np.full_like(values, 1 / count)
    low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
    width = np.maximum(high - low, 1e-12) / bins
    place = np.minimum(((values - low) / width).astype(np.int64), bins - 1) + bins * np.arange(rows)[:, None]
    weights = np.bincount(place.ravel(), minlength=rows * bins).reshape(rows, bins) / count
    return low + width * (np.arange(bins) + 0.5), weights


def _maximise_likelihood(v: Values, w: Values, start: Values, rounds: int) -> tuple[Values, Values]:
    """Parameters [5, m] in the order of `Mixture`, and mean log-likelihoods [m], of points and weights [m, b]."""
    middle = _weighted_median(v, w)
    floor = FLOOR * np.maximum(MAD * _weighted_median(np.abs(v - middle[:, None]), w), 1e-12)
    spread = np.maximum(floor, 1.0)
    share, bulk, bulk_spread = np.full(len(v), FIRST_SHARE), middle, spread
    mode, mode_spread = np.maximum(start, middle + spread), spread
    for _ in range(rounds):
        upper, lower = _logarithms(v, share, bulk, bulk_spread, mode, mode_spread)
        r = w * _logistic(upper - lower) * (v > bulk[:, None])
        rest = w - r
        total = np.maximum(r.sum(axis=1), 1e-300)
        moved = np.where(total > LEAST_SHARE / 10, (r * v).sum(axis=1) / total, mode) - mode
        mode = mode + moved
        bulk = (rest * v).sum(axis=1) / rest.sum(axis=1)
        mode_spread = np.maximum(floor, np.sqrt((r * (v - mode[:, None]) ** 2).sum(axis=1) / total))
        bulk_spread = np.maximum(floor, np.sqrt((rest * (v - bulk[:, None]) ** 2).sum(axis=1) / rest.sum(axis=1)))
        share = np.clip(total, LEAST_SHARE, MOST_SHARE)
        if np.abs(moved).max() < SETTLED:
            break
    upper, lower = _logarithms(v, share, bulk, bulk_spread, mode, mode_spread)
    likelihood = (w * np.logaddexp(upper, lower)).sum(axis=1)
    return np.stack([share, bulk, bulk_spread, mode, mode_spread]), likelihood


def _logarithms(
    v: Values, share: Values, bulk: Values, bulk_spread: Values, mode: Values, mode_spread: Values
) -> tuple[Values, Values]:
    upper = (np.log(share) - np.log(mode_spread))[:, None] - 0.5 * ((v - mode[:, None]) / mode_spread[:, None]) ** 2
    lower = (np.log1p(-share) - np.log(bulk_spread))[:, None] - 0.5 * ((v - bulk[:, None]) / bulk_spread[:, None]) ** 2
    return upper, lower


def _weighted_median(v: Values, w: Values) -> Values:
    order = np.argsort(v, axis=1)
    reached = np.cumsum(np.take_along_axis(w, order, axis=1), axis=1) >= 0.5 - 1e-12
    at = np.take_along_axis(order, reached.argmax(axis=1)[:, None], axis=1)
    return np.take_along_axis(v, at, axis=1)[:, 0]


def _logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(np.clip(-x, -LARGEST_EXPONENT, LARGEST_EXPONENT)))
