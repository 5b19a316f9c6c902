"""From a ranking to the probability that each label is wrong.

The probability that a label is wrong is modelled as

    P(wrong | v) = σ(a + b x),        x = (v − median) / deviation

The noise rate π (see `rates`) fixes a, the mean of P. With it the likelihood of the decoys gives b; without decoys b is
the slope that runs with decoys have shown. Doubtful labels, which may be wrong but do not look like decoys, lie on a
second curve that never passes one half.

The rate takes for granted that some labels can only be wrong. To a model that has learned next to nothing right
labels look like decoys, and every share of wrong ones, from none on, explains that as well as any other: the share and
what the model knows enter as a product, (1 − π C/(C − 1)) times competence, which is the agreement. Where that is near
the agreement of a guess, or so few examples are held out that it may be (`known`), what is `stated` about the rate
reaches from zero to what the agreement leaves room for, (1 − agreement)(C − 1)/C, and its estimate is the middle.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.fusion import ramp
from sgoif.tasks.labels.likelihood import LEAST_RATE, NoiseRate, offset, sigmoid
from sgoif.tasks.labels.named import Named
from sgoif.tasks.labels.rates import HALF, MOST_RATE, POINTS, Rate, Run, mixed, rate_with_decoys, rate_without_decoys
from sgoif.tasks.labels.sure import Sure

IGNORANT, AWARE = 0.2, 0.3
"""Agreement beyond chance below which labels are not judged at all, and from which they are."""
TOO_LITTLE = "the model has learned too little to judge labels"
KNOWS_LITTLE = "the model knows too little, or too few examples are held out, to judge labels well"
LEAST_DECOYS = 30
LEAST_CAUTION = 1e-4
QUANTILE = 1.64


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
    doubt: float = 0.0
    """Share of labels, within the rate, that may be wrong but do not look like decoys."""
    doubt_offset: float = -np.inf
    doubt_slope: float = 1.0
    most: float = 1.0
    """The largest probability that a model of this competence may state."""
    noisy: float = 0.0
    """0 to 1: whether decoys alone show a weak model that there is noise, however wide the interval is."""
    estimates: dict[str, float] = field(default_factory=dict)
    known: float = 1.0
    """0 to 1: whether the model surely knows enough to tell how many labels are wrong."""
    room: float = 1.0
    """The largest share of wrong labels with which held-out labels agree as they do."""
    competence: float = 1.0
    """Agreement reached over what a perfect model would reach; too high without decoys, as mistakes pass for noise,
    even by the smallest estimate."""
    kept: float = 1.0
    """What limits by class leave of the rate (see `confused`)."""
    structured: float = 0.0
    """0 to 1: whether errors follow classes, which a model's own mistakes do too; 0 without decoys."""

    def probability(self, v: Array) -> Array:
        """P(wrong | v), its odds lowered by `caution`, and what is doubtful besides."""
        x = self.slope * (v - self.centre) / self.scale
        p = sigmoid(self.offset + x)
        cautious: Array = self.caution * p / np.maximum(self.caution * p + 1 - p, 1e-300)
        if self.doubt:
            cautious = cautious + (1 - cautious) * HALF * sigmoid(self.doubt_offset + self.doubt_slope * x)
        return self.most * cautious * (1 + self.trust) / 2  # a model that knows nothing never says more than "perhaps"

    def selected(self, probability: Array, fdr: float) -> Labels:
        """The list at a false discovery rate; an empty one where nothing is known."""
        return selected_at(probability, fdr if self.known else 0.0)

    @property
    def stated(self) -> NoiseRate:
        """The rate as far as it is known; nothing but the room for it where nothing is."""
        low = self.known * self.kept * self.rate.low
        high = max(self.rate.high, mixed(self.room, self.rate.high, self.known))
        return NoiseRate(mixed((low + high) / 2, self.kept * self.rate.estimate, self.known), low, high)

    @property
    def sure(self) -> float:
        """The rate without what is doubtful."""
        return self.rate.estimate - self.doubt

    @property
    def caution(self) -> float:
        """Factor on the odds: 1 where there certainly is noise, nearly 0 where its interval reaches zero.

        A rate that is small only because one of its estimates is does not make its lower end look large.
        """
        share = 2 * self.rate.low / max(self.sure, HALF * self.rate.high, LEAST_RATE)
        return max(self.trust * max(float(np.clip(share, 0, 1)) ** 3, self.noisy), LEAST_CAUTION)


def calibrate(
    v: Array,
    decoys: Array | None,
    estimates: dict[str, float],
    *,
    anchors: int,
    classes: int,
    agreement: float = 1.0,
    margins: tuple[Array, Array] | None = None,
    looks: float = 0.0,
    fitted: float = 1.0,
    naming: Named | None = None,
    names: NoiseRate | None = None,
    sure: Sure | None = None,
) -> Calibration:
    """Fit the curve to the ranking of examples and, where there are enough, of decoys.

    `estimates` are those of the noise rate from the held-out examples, of which there are `anchors`. `agreement` is how
    far predictions for them agree with their labels, beyond chance. `margins` are the logit margins of examples and of
    decoys, higher = more suspicious; without them v has to do. `looks` says whether the noise follows looks, `fitted`
    whether decoys look like examples that were never trained on, 0 to 1 both. `naming` is the rate by naming,
    which counts as far as the noise does not follow looks. `names` is the rate by strict names, for want of decoys,
    `sure` the one by the classes that the model is surest of.
    """
    centre = float(np.median(v))
    scale = float(v.std()) or 1.0
    points = np.quantile((v - centre) / scale, np.linspace(0, 1, POINTS))
    run = Run(anchors, classes, agreement, looks, fitted)
    if decoys is None or len(decoys) < LEAST_DECOYS:
        found = rate_without_decoys(estimates, run, names, few=decoys is not None)
    else:
        found = rate_with_decoys(points, (decoys - centre) / scale, margins, estimates, run, naming, sure)
    level = offset(points, found.slope, found.sure)
    doubt, doubt_level, flatter = found.doubt, -np.inf, 1.0
    if doubt > LEAST_RATE:
        left = HALF * (1 - sigmoid(level + found.slope * points))
        flatter = 1 - HALF * found.unseen / doubt
        doubt = min(doubt, MOST_RATE * float(left.mean()))
        doubt_level = offset(points, flatter * found.slope, doubt, left)
    surely = _surely(agreement, anchors, classes)
    return Calibration(
        centre,
        scale,
        level,
        found.slope,
        _interval(found, doubt, anchors),
        ramp(agreement, IGNORANT, AWARE),
        doubt,
        doubt_level,
        flatter,
        found.most,
        found.noisy,
        found.estimates,
        known=ramp(surely, IGNORANT, AWARE),
        room=(1 - surely) * (classes - 1) / classes,
        competence=found.competence,
        structured=found.structured,
    )


def _interval(found: Rate, doubt: float, anchors: int) -> NoiseRate:
    """The rate with what is doubtful, and the interval of the estimates widened by the sampling error."""
    rate = found.sure + doubt
    error = found.narrow * QUANTILE * float(np.sqrt(max(rate, 1 / anchors) * (1 - rate) / anchors))
    low, high = max(0.0, found.low - error), min(1.0, found.high + found.unseen + error)
    return NoiseRate(rate, min(low, rate), max(high, rate))


def selected_at(probability: Array, fdr: float) -> Labels:
    """The longest list, most probable first, whose expected share of right labels is at most `fdr`."""
    order = np.argsort(-probability, kind="stable")
    false = np.cumsum(1 - probability[order]) / np.arange(1, len(order) + 1)
    within = np.flatnonzero(false <= fdr)
    chosen: Labels = order[: within[-1] + 1 if len(within) else 0]
    return chosen


def _surely(agreement: float, anchors: int, classes: int) -> float:
    """The lower end of the agreement beyond chance, from so many held-out examples (Wilson)."""
    guess, z = 1 / classes, QUANTILE**2 / anchors
    share = guess + agreement * (1 - guess)
    low = (share + z / 2 - np.sqrt(z * share * (1 - share) + z**2 / 4)) / (1 + z)
    return max(0.0, float(low - guess) / (1 - guess))
