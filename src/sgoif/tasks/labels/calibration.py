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
estimate of the noise rate. Errors that have structure are easier to see on v than decoys, which θ does not allow for,
so where the model can name the true class of wrong labels, decoys are counted by that instead (see `named`). The other
estimate comes from the held-out examples: the confident joint, which counts some doubtful examples as wrong, and the
mean of the channel's posterior, which is too low; the geometric mean of the two is near the truth where labels are
wrong regardless of the image. Decoys and held-out examples are drawn apart from each other, and where there is no noise
the decoys see nothing: the geometric mean of both estimates is the noise rate. A network that has memorised its
training examples has memorised the decoys as well. They then lie lower than b and θ allow for, and the likelihood makes
up for it with errors that are not there; held-out examples are as they were, and decoys count as far as nothing was
memorised (`fitted`). The spread of the estimates, with the sampling error, is the interval. With the rate fixed, the
likelihood of the decoys gives b.

A model that understands its images badly disagrees with many labels that are right, and everything that rests on its
disagreement is then too high. So is the likelihood with θ: right labels of unclear images look like hard errors. What
can still be believed is the likelihood without θ (`plain_rate`): it counts errors that look like decoys and no others.
It is taken twice, on v and on logit margins. A label drawn at random is improbable in every respect, while the right
label of an unclear image usually comes second, so that logit margins tell the two apart; errors with structure they do
not see. Where they see most of what v sees, the noise has no structure, and the smaller of both rates holds. Where they
do not, it may have structure, and only the lower end on v is sure.

How competent the model is follows from its agreement: if a share π̂ of the labels is wrong, a perfect model agrees with
1 − π̂ of the held-out ones; the agreement reached, over that, is its competence (π̂ is taken as large as decoys and
channel allow). A competent model is judged by the mean of the estimates above, another by this likelihood, with a
smooth passage between. Less is asked of a model where this likelihood counts nearly as many errors as the confident
joint: it does not where a model is weak. Where it counts hardly any of them, what the joint counts are the mistakes of
the model, however competent it is: so it is where all labels are right. Where the noise has no structure the decoys
alone know best, and more is asked. Dense noise with structure makes decoys stand out, so that they count too few errors
and a model passes for weak that is not. There the classes that it is surest of may vouch for it: if the share of labels
that they contradict, at the lower end of its interval, explains what the model disagrees with, it is competent, and
that share takes the place of both estimates (see `sure`); of a model that was competent anyway only where the noise is
dense, its names are learned and nothing was memorised. Where the noise is sparse that share is a *bound*. A model of
middling competence may owe it to π̂, which its own mistakes have part in, as they have in all estimates of the mean. By
what sure classes contradict, which has the least of them, its competence is lower, and as far as that proves too little
the mean comes down to that share, half of its sampling error above it. People's errors are few among the surest, so
that less is asked where noise follows looks, or where so much was memorised that it may. A weak model leaves *doubtful*
labels over where noise may have structure: up to the rate on v, or to half of what the channel's posterior counts, the
other half being its own confusion. They take part in the rate, but no such label is called more likely wrong than
right. The interval then reaches from what is sure to the confident joint. A competent model too leaves labels over
where they are wrong because classes look alike, as people's are (see `lookalike`): they lie below the others on v,
under a curve of half the slope, and widen the interval upwards. Probabilities of a model of very little competence stay
below certainty.

All of this takes for granted that some labels can only be wrong. To a model that has learned next to nothing right
labels look like decoys, and every share of wrong ones, from none on, explains that as well as any other: the share and
what the model knows enter as a product, (1 − π C/(C − 1)) times competence, which is the agreement. Where that is near
the agreement of a guess, or so few examples are held out that it may be (`known`), what is `stated` about the rate
reaches from zero to what the agreement leaves room for, (1 − agreement)(C − 1)/C, and its estimate is the middle.

*Without decoys* the rate comes from the held-out examples alone, as confident joint and as mean of the channel's
posterior, and b is the slope that runs with decoys have shown. So it is in a set that is too small for enough decoys.
It cannot teach a model much either, and what that disagrees with may be its own mistakes: no more than half of the
lower end of the interval is sure there, and none of it, nor any single label, where noise at the smallest estimate
leaves so much of the disagreement over that the model is mistaken often. Nor is any of it where strict names, which a
model's own mistakes do not reach, cannot be told from none (see `strict`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.fusion import competence as competence_of
from sgoif.tasks.labels.fusion import ramp
from sgoif.tasks.labels.likelihood import (
    LEAST_RATE,
    SLOPE,
    NoiseRate,
    offset,
    plain_rate,
    rate_by_decoys,
    sigmoid,
    slope_at,
)
from sgoif.tasks.labels.named import Named
from sgoif.tasks.labels.sure import Sure

STEEP, FREE = (6.0, 0.08), (5.0, 0.4)
"""Slope and its logarithmic spread while the rate is unknown: narrow, since slope and hardness can stand in for each
other, and wide for a first look."""
NOTICEABLE = 0.01
"""A noise rate that can be told from none."""
HIDDEN, SEEN = 0.65, 0.85
"""What logit margins see of the noise: below the first share it may have structure, from the second it has none."""
INCOMPETENT, COMPETENT = 0.785, 0.825
EASIER, SURER = 0.075, 0.115
"""Competence that is asked for besides, at either end, where the noise has no structure."""
AGREEING, DIFFERENT, SAME = 0.075, 0.6, 0.9
"""Competence that is granted where decoys alone count as many errors as the confident joint, or nearly: at least the
last share, in part from the second on."""
INVENTED, SHOWN = 0.1, 0.3
"""What decoys alone count, over what the confident joint does, up to which that is the model's own mistakes, and from
which it need not be."""
UNPROVED, PROVED, UNCLEAR = 0.85, 0.9, 0.05
"""Competence by sure classes alone up to which the mean of the estimates is bounded by them, and from which it is not;
how much less is asked where noise follows looks, or may since too much was memorised to tell."""
VAGUE, DEFINITE = 0.3, 0.5
"""Lower end of the rate by sure classes, over that rate, up to which it bounds nothing, and from which it may."""
UNSEEN, LITTLE = 0.27, 0.03
"""Errors that are not seen where noise follows looks, as a share of those that are; in full from the second rate on."""
SPARSE, DENSE = 0.25, 0.35
"""Rate by sure classes up to which they do no more than bound that of a competent model, and from which it is judged by
them alone."""
IGNORANT, AWARE = 0.2, 0.3
"""Agreement beyond chance below which labels are not judged at all, and from which they are."""
UNABLE, ABLE, UNCERTAIN = 0.47, 0.55, 0.8
"""Competence below which probabilities stay below the last number, and from which they may reach one."""
UNLIKE = 1.1
"""Decoys need not look quite like real errors: a factor on either end of what they say about the rate."""
HALF = 0.5
"""What decoys count beside held-out examples, what of the channel's posterior a weak model is believed, what is sure of
a rate in a small set, and the most that is said of a doubtful label."""
MISTAKEN, RELIABLE = 0.88, 0.94
"""Competence up to which nothing is sure in a set that is too small for enough decoys, and from which all of it is."""
FEW, MANY = 50, 150
"""Held-out examples below which a set without decoys is too small to be sure of more, and from which it is not."""
TOO_LITTLE = "the model has learned too little to judge labels"
LEAST_DECOYS = 30
POINTS = 4001
MOST_RATE = 0.9
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
        high = max(self.rate.high, _mixed(self.room, self.rate.high, self.known))
        return NoiseRate(_mixed((low + high) / 2, self.kept * self.rate.estimate, self.known), low, high)

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
    trust = ramp(agreement, IGNORANT, AWARE)
    surely = _surely(agreement, anchors, classes)
    doubt, unseen, most, noisy, competence = 0.0, 0.0, 1.0, 0.0, 1.0
    if decoys is None or len(decoys) < LEAST_DECOYS:
        found, slope = dict(estimates), SLOPE
        rate = _mean_rate(found)
        low, high, narrow = min(found.values()), max(found.values()), 1.0
        competence = competence_of(agreement, low, classes)
        low *= 1 - HALF * (1 - ramp(anchors, FEW, MANY))
        if decoys is not None:
            reliable = ramp(competence, MISTAKEN, RELIABLE)
            low, most = reliable * low, _mixed(UNCERTAIN, 1.0, reliable)
        if names is not None:
            low *= ramp(names.low, 0, NOTICEABLE)
    else:
        x = (decoys - centre) / scale
        joint = estimates["confident joint"]
        posterior = estimates.get("posterior", joint)
        alike = _alike(points, x, margins, classes)
        seen = rate_by_decoys(points, x, classes, *FREE)
        believed = max(alike.rate, min(posterior, alike.high + alike.structured * (seen - alike.high)))
        asked = INCOMPETENT + EASIER * (1 - alike.structured), COMPETENT + SURER * (1 - alike.structured)
        shown = alike.rate / max(joint, LEAST_RATE)
        granted = AGREEING * alike.structured * ramp(shown, DIFFERENT, SAME)
        competence = competence_of(agreement, believed, classes)
        weight = known = ramp(shown, INVENTED, SHOWN) * ramp(competence + granted, *asked)
        replaced = 0.0
        if sure is not None:
            vouched = ramp(competence_of(agreement, sure.held_out.low, classes), *asked)
            vouched *= alike.structured * (1 - looks) * sure.trust
            weight = max(weight, vouched)
            replaced = vouched * fitted * sure.learned * ramp(sure.held_out.estimate, SPARSE, DENSE)
            replaced = max(replaced, 1 - known / weight if weight > known else 0.0)
        able = ramp(competence_of(agreement, alike.rate, classes), UNABLE, ABLE)
        most = _mixed(UNCERTAIN, 1.0, able)
        noisy = min(1.0, 2 * (1 - weight)) * ramp(alike.low, 0, NOTICEABLE) ** 3
        # Where the free slope sees next to nothing there is nothing to be hard: a steep one would invent it.
        steep = min(rate_by_decoys(points, x, classes, *STEEP), seen * (1 + seen / NOTICEABLE))
        by_decoys = steep
        if naming is not None:
            by_decoys = _between(steep, max(naming.rate, LEAST_RATE), naming.trust * (1 - looks))
        held_out = _mean_rate(estimates)
        if sure is not None and replaced:
            held_out = _between(held_out, sure.held_out.estimate, replaced)
            by_decoys = _between(by_decoys, max(sure.decoys, LEAST_RATE), replaced)
        found = {"confident joint": joint, "held out": held_out, "decoys": by_decoys}
        mean = _between(held_out, by_decoys, HALF * fitted)
        if sure is not None:
            mean = _bounded(
                mean, sure.held_out, competence_of(agreement, sure.held_out.estimate, classes), looks, fitted
            )
        narrow = max(weight, alike.structured)
        found = {name: _between(alike.rate, value, narrow) for name, value in found.items()}
        least = min(_between(alike.rate, mean, narrow), *found.values())
        low = _between(min(alike.low / UNLIKE, *found.values()), least, weight)
        high = _between(max(alike.high * UNLIKE, *found.values()), max(found.values()), weight)
        rate = _between(_between(alike.rate, alike.low, alike.structured), mean, weight)
        slope = slope_at(points, x, rate, classes)
        unseen = weight * (1 - replaced) * looks * ramp(rate, NOTICEABLE, LITTLE) * UNSEEN * rate
        doubt = unseen + (1 - weight) * alike.structured * max(0.0, HALF * posterior - rate, alike.rate - rate)
    level, doubt_level, flatter = offset(points, slope, rate), -np.inf, 1.0
    if doubt > LEAST_RATE:
        left = HALF * (1 - sigmoid(level + slope * points))
        flatter = 1 - HALF * unseen / doubt
        doubt = min(doubt, MOST_RATE * float(left.mean()))
        doubt_level = offset(points, flatter * slope, doubt, left)
    rate += doubt
    error = narrow * QUANTILE * float(np.sqrt(max(rate, 1 / anchors) * (1 - rate) / anchors))
    low, high = max(0.0, low - error), min(1.0, high + unseen + error)
    interval = NoiseRate(rate, min(low, rate), max(high, rate))
    return Calibration(
        centre,
        scale,
        level,
        slope,
        interval,
        trust,
        doubt,
        doubt_level,
        flatter,
        most,
        noisy,
        found,
        known=ramp(surely, IGNORANT, AWARE),
        room=(1 - surely) * (classes - 1) / classes,
        competence=competence,
    )


def selected_at(probability: Array, fdr: float) -> Labels:
    """The longest list, most probable first, whose expected share of right labels is at most `fdr`."""
    order = np.argsort(-probability, kind="stable")
    false = np.cumsum(1 - probability[order]) / np.arange(1, len(order) + 1)
    within = np.flatnonzero(false <= fdr)
    chosen: Labels = order[: within[-1] + 1 if len(within) else 0]
    return chosen


class _Alike(NamedTuple):
    """The noise that looks like decoys: its rate with an interval, and whether there may be other noise (0 to 1)."""

    rate: float
    low: float
    high: float
    structured: float


def _alike(points: Array, decoys: Array, margins: tuple[Array, Array] | None, classes: int) -> _Alike:
    """The rate by decoys alone; logit margins correct it as far as they see the same noise."""
    plain = plain_rate(points, decoys, classes)
    if margins is None:
        return _Alike(plain.estimate, plain.low, plain.high, structured=0.0)
    everyone, own = margins
    centre, scale = float(np.median(everyone)), float(everyone.std()) or 1.0
    spread = np.quantile((everyone - centre) / scale, np.linspace(0, 1, POINTS))
    finer = plain_rate(spread, (own - centre) / scale, classes)
    unstructured = ramp(finer.estimate / max(plain.estimate, LEAST_RATE), HIDDEN, SEEN)
    rate, low, high = (_between(wide, min(wide, fine), unstructured) for wide, fine in zip(plain, finer, strict=True))
    return _Alike(rate, low, high, structured=1 - unstructured)


def _bounded(mean: float, sure: NoiseRate, competence: float, looks: float, fitted: float) -> float:
    """The mean of the estimates, at most what sure classes say where by these alone the model is not competent."""
    bound = (sure.estimate + sure.high) / 2
    proved = ramp(competence + UNCLEAR * max(looks, 1 - fitted), UNPROVED, PROVED)
    vague = 1 - ramp(sure.low / max(sure.estimate, LEAST_RATE), VAGUE, DEFINITE)
    return mean if mean <= bound else _between(bound, mean, max(proved, vague, ramp(sure.estimate, SPARSE, DENSE)))


def _surely(agreement: float, anchors: int, classes: int) -> float:
    """The lower end of the agreement beyond chance, from so many held-out examples (Wilson)."""
    guess, z = 1 / classes, QUANTILE**2 / anchors
    share = guess + agreement * (1 - guess)
    low = (share + z / 2 - np.sqrt(z * share * (1 - share) + z**2 / 4)) / (1 + z)
    return max(0.0, float(low - guess) / (1 - guess))


def _mixed(low: float, high: float, weight: float) -> float:
    """From the first (weight 0) to the second (1)."""
    return (1 - weight) * low + weight * high


def _between(low: float, high: float, weight: float) -> float:
    """From the first rate (weight 0) to the second (1), on a logarithmic scale."""
    return float(high**weight * max(low, LEAST_RATE) ** (1 - weight))


def _mean_rate(estimates: dict[str, float]) -> float:
    """Geometric mean of rates."""
    return float(np.exp(np.log(np.clip(list(estimates.values()), LEAST_RATE, MOST_RATE)).mean()))
