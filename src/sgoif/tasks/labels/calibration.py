"""From a ranking to probabilities, and how many labels are wrong in all.

The probability that a label is wrong is modelled as

    P(wrong | v) = σ(a + b x),        x = (v − median) / deviation

*With decoys.* Labels made wrong on purpose show where wrong labels lie on v. If real errors looked like decoys, the
density of decoys would be ∝ P f, f being that of all examples, and the likelihood of the decoys

    Σ_decoys log P(x) − n log E_f[P]

would fix both a and b: P cannot exceed one, so its plateau tells the share of wrong labels E_f[P]. Two things are
allowed for. Real errors can be harder than uniform decoys (people confuse what looks alike); then decoys are
∝ P f e^{θx} with θ ≥ 0. And a label that was wrong already can be flipped to the right one, so a share π/(C − 1) of
the decoys, π being the noise rate, is right after all. The mean of log π under this likelihood, over b and θ, is one
of three estimates of the noise rate. The second is the confident joint of the held-out examples. The third is the share
of examples above the point that nine of ten decoys exceed, halfway (on a logarithmic scale) between counting all of
them as wrong and counting each with its P. The geometric mean of the three is the noise rate: they agree where there is
noise, and where there is none the decoys see nothing and pull it towards zero. All three count some doubtful examples
as wrong, so the mean of the channel's posterior over the held-out examples, which is too low, takes part with a third
of their weight. The spread of the three, with the sampling error, is the interval. With the rate fixed, the likelihood
of the decoys gives b.

A model that understands its images badly disagrees with many labels that are right, and everything that rests on its
disagreement is then too high. If only the share π̂ that the decoys see were wrong, a perfect model would agree with
1 − π̂ of the held-out labels; the agreement reached, over that, is how competent the model must be. Below about three
quarters the decoys' likelihood alone is believed, with the slope left free.

*Without decoys* the rate comes from the held-out examples alone, as confident joint and as mean of the channel's
posterior, and b is the slope that runs with decoys have shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sgoif.tasks.labels.channel import Array
from sgoif.tasks.labels.fusion import ramp

SLOPE, WIDE = 5.0, 0.3
"""Usual slope b, and its logarithmic spread."""
STEEP, FREE = (6.0, 0.08), (5.0, 0.4)
"""Slope and its logarithmic spread while the rate is unknown: narrow, since slope and hardness can stand in for each
other, and wide for a model of little competence."""
PREFERENCE = 2.0
NOTICEABLE = 0.01
"""A noise rate that can be told from none."""
INCOMPETENT, COMPETENT = 0.74, 0.79
IGNORANT, AWARE = 0.2, 0.3
"""Agreement beyond chance below which labels are not judged at all, and from which they are."""
HARDNESS = 0.5
"""Usual size of θ."""
CAUTIOUS = 1 / 3
"""What the mean of the channel's posterior counts among the estimates of the rate."""
LEAST_DECOYS = 30
POINTS = 4001
MOST_OF_DECOYS = 0.9
LEAST_RATE, MOST_RATE = 1e-5, 0.9
LEAST_CAUTION = 1e-4
QUANTILE = 1.64


class NoiseRate(NamedTuple):
    """Share of wrong labels, with an interval that spans the estimators and their sampling error."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Calibration:
    """The curve P(wrong | v), and what it rests on."""

    centre: float
    scale: float
    offset: float
    slope: float
    rate: NoiseRate
    trust: float = 1.0
    """0 to 1: whether the model knows enough to judge labels at all."""
    estimates: dict[str, float] = field(default_factory=dict)

    def probability(self, v: Array) -> Array:
        """P(wrong | v), its odds lowered by `caution`."""
        p = sigmoid(self.offset + self.slope * (v - self.centre) / self.scale)
        cautious: Array = self.caution * p / np.maximum(self.caution * p + 1 - p, 1e-300)
        return cautious * (1 + self.trust) / 2  # a model that knows nothing never says more than "perhaps"

    @property
    def caution(self) -> float:
        """Factor on the odds: 1 where there certainly is noise, nearly 0 where its interval reaches zero."""
        share = 2 * self.rate.low / max(self.rate.estimate, LEAST_RATE)
        return max(self.trust * float(np.clip(share, 0, 1)) ** 3, LEAST_CAUTION)


def calibrate(
    v: Array, decoys: Array | None, estimates: dict[str, float], *, anchors: int, classes: int, agreement: float = 1.0
) -> Calibration:
    """Fit the curve to the ranking of examples and, where there are enough, of decoys.

    `estimates` are those of the noise rate from the held-out examples, of which there are `anchors`. `agreement` is how
    far predictions for them agree with their labels, beyond chance.
    """
    centre = float(np.median(v))
    scale = float(v.std()) or 1.0
    points = np.quantile((v - centre) / scale, np.linspace(0, 1, POINTS))
    if decoys is None or len(decoys) < LEAST_DECOYS:
        found, slope = dict(estimates), SLOPE
        rate = _mean_rate(found)
    else:
        x = (decoys - centre) / scale
        joint = estimates["confident joint"]
        seen = _rate_by_decoys(points, x, classes, *FREE)
        competence = agreement / max(1 - seen * classes / (classes - 1), 0.05)
        weight = ramp(competence, INCOMPETENT, COMPETENT)
        # Where the free slope sees next to nothing there is nothing to be hard: a steep one would invent it.
        steep = min(_rate_by_decoys(points, x, classes, *STEEP), seen * (1 + seen / NOTICEABLE))
        found = {"confident joint": joint, "decoys": steep}
        found["above most decoys"] = _above_most(points, x, _mean_rate(found), classes)
        mean = _mean_rate(found, estimates.get("posterior"))
        found = {name: _between(seen, value, weight) for name, value in found.items()}
        rate = _between(seen, mean, weight)
        slope = _slope(points, x, rate, classes)
    error = QUANTILE * float(np.sqrt(max(rate, 1 / anchors) * (1 - rate) / anchors))
    low, high = max(0.0, min(found.values()) - error), min(1.0, max(found.values()) + error)
    interval = NoiseRate(rate, min(low, rate), max(high, rate))
    trust = ramp(agreement, IGNORANT, AWARE)
    return Calibration(centre, scale, _offset(points, slope, rate), slope, interval, trust, found)


def selected_at(probability: Array, fdr: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The longest list, most probable first, whose expected share of right labels is at most `fdr`."""
    order = np.argsort(-probability, kind="stable")
    false = np.cumsum(1 - probability[order]) / np.arange(1, len(order) + 1)
    within = np.flatnonzero(false <= fdr)
    chosen: np.ndarray[tuple[int], np.dtype[np.int64]] = order[: within[-1] + 1 if len(within) else 0]
    return chosen


def _between(low: float, high: float, weight: float) -> float:
    """From the first rate (weight 0) to the second (1), on a logarithmic scale."""
    return float(high**weight * max(low, LEAST_RATE) ** (1 - weight))


def _mean_rate(estimates: dict[str, float], cautious: float | None = None) -> float:
    """Geometric mean of rates; one that is known to be low counts less."""
    rates, weights = list(estimates.values()), [1.0] * len(estimates)
    if cautious is not None:
        rates, weights = [*rates, cautious], [*weights, CAUTIOUS]
    return float(np.exp(np.average(np.log(np.clip(rates, LEAST_RATE, MOST_RATE)), weights=weights)))


def _above_most(points: Array, decoys: Array, rate: float, classes: int) -> float:
    """The rate by what lies above most of the decoys; `rate` is a first guess."""
    right = rate / (classes - 1)
    above = points >= np.quantile(decoys, right + (1 - right) * (1 - MOST_OF_DECOYS))
    slope = _slope(points, decoys, rate, classes)
    likely = float((sigmoid(_offset(points, slope, rate) + slope * points) * above).mean())
    return min(float(np.sqrt(likely * above.mean())) / MOST_OF_DECOYS, MOST_RATE)


def sigmoid(a: Array) -> Array:
    """1 / (1 + e^−a), without overflow."""
    out: Array = 1 / (1 + np.exp(-np.clip(a, -60, 60)))
    return out


def _offset(points: Array, slope: float, rate: float) -> float:
    """a such that the mean of σ(a + b x) over the points is the rate."""
    low, high = -200.0, 200.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if sigmoid(middle + slope * points).mean() > rate else (middle, high)
    return (low + high) / 2


def _slope(points: Array, decoys: Array, rate: float, classes: int) -> float:
    """b at a known rate: the likelihood of the decoys, with a wide prior around the usual slope."""
    right = rate / (classes - 1)

    def loss(slope: float) -> float:
        p = sigmoid(_offset(points, slope, rate) + slope * decoys)
        likelihood = np.log((1 - right) * p / rate + right * (1 - p) / (1 - rate) + 1e-300).sum()
        return float(-likelihood + 0.5 * (np.log(slope / SLOPE) / WIDE) ** 2)

    grid = np.geomspace(0.5, 20, 40)
    best = int(np.argmin([loss(b) for b in grid]))
    fine = np.linspace(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)], 15)
    return float(fine[int(np.argmin([loss(b) for b in fine]))])


def _rate_by_decoys(points: Array, decoys: Array, classes: int, centre: float, spread: float) -> float:
    """The rate by the likelihood of the decoys: the mean of its logarithm over a grid of rates, slopes and θ.

    Slopes have a log-normal prior of this centre and spread.
    """
    points = points[:: max(1, len(points) // 1000)]
    hardness = np.linspace(0, 1.5, 16)
    top = points.max()
    tilt, own_tilt = np.exp(np.outer(hardness, points - top)), np.exp(np.outer(hardness, decoys - top))
    rates = np.concatenate([[LEAST_RATE, 1e-4], np.geomspace(1e-3, 0.75, 60)])
    slopes = centre * np.exp(spread * np.linspace(-2.5, 2.5, 9))
    prior = 0.5 * (hardness / HARDNESS) ** 2
    losses = np.empty((len(rates), len(slopes), len(hardness)))
    for i, rate in enumerate(rates):
        right = rate / (classes - 1)
        for j, slope in enumerate(slopes):
            offset = _offset(points, slope, rate)
            everywhere, own = sigmoid(offset + slope * points), sigmoid(offset + slope * decoys)
            total = np.maximum((tilt * everywhere).mean(1), 1e-300)[:, None]
            density = (1 - right) * own_tilt * own / total + right * (1 - own) / (1 - rate)
            likelihood = np.log(density + 1e-300).sum(1)
            losses[i, j] = -likelihood + prior + 0.5 * (np.log(slope / centre) / spread) ** 2
    # Where wrong labels stand well apart, any smaller rate explains the decoys as well, by right labels among them. The
    # prior prefers the largest rate that does.
    weight = np.exp(losses.min() - losses).sum((1, 2)) * rates**PREFERENCE
    return float(np.exp((weight * np.log(rates)).sum() / weight.sum()))
