"""How many labels are wrong in all: what decoys, held-out examples, names and sure classes say, and what is believed.

P(wrong | v) = σ(a + b x) is the curve of `calibration`, x being v around its median in units of its deviation.

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
memorised (`fitted`). The spread of the estimates, with the sampling error, is the interval.

A model that understands its images badly disagrees with many labels that are right, and everything that rests on its
disagreement is then too high. So is the likelihood with θ: right labels of unclear images look like hard errors. What
can still be believed is the likelihood without θ (`plain_rate`): it counts errors that look like decoys and no others.
It is taken twice, on v and on logit margins. A label drawn at random is improbable in every respect, while the right
label of an unclear image usually comes second, so that logit margins tell the two apart; errors with structure they do
not see. Where they see most of what v sees, the noise has no structure, and the smaller of both rates holds. Where they
do not, it may have structure, and only the lower end on v is sure. Noise without structure looks like decoys, to a
competent model too, so that this rate takes the place of the mean for it. It is a little low where noise is dense, and
what is named a little high, by the model's own mistakes: where these are few beside the wrong labels, the geometric
mean of both holds.

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

*Without decoys* the rate comes from the held-out examples alone, as confident joint and as mean of the channel's
posterior, and b is the slope that runs with decoys have shown. So it is in a set that is too small for enough decoys.
It cannot teach a model much either, and what that disagrees with may be its own mistakes: no more than half of the
lower end of the interval is sure there, and none of it, nor any single label, where noise at the smallest estimate
leaves so much of the disagreement over that the model is mistaken often. Nor is any of it where strict names, which a
model's own mistakes do not reach, cannot be told from none (see `strict`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sgoif.tasks.labels.channel import Array
from sgoif.tasks.labels.fusion import competence as competence_of
from sgoif.tasks.labels.fusion import ramp
from sgoif.tasks.labels.likelihood import LEAST_RATE, SLOPE, NoiseRate, plain_rate, rate_by_decoys, slope_at
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
UNABLE, ABLE, UNCERTAIN = 0.47, 0.55, 0.8
"""Competence below which probabilities stay below the last number, and from which they may reach one."""
RARELY, OFTEN = 0.4, 0.7
"""A model's own mistakes for every wrong label, up to which what it names is wrong, and from which much is right."""
OPEN, SETTLED = 0.5, 0.7
"""Lower end of the rate by decoys alone, over that rate, up to which it may as well be another, and from which not."""
UNLIKE = 1.1
"""Decoys need not look quite like real errors: a factor on either end of what they say about the rate."""
HALF = 0.5
"""What decoys count beside held-out examples, what of the channel's posterior a weak model is believed, what is sure of
a rate in a small set, and the most that is said of a doubtful label."""
MISTAKEN, RELIABLE = 0.88, 0.94
"""Competence up to which nothing is sure in a set that is too small for enough decoys, and from which all of it is."""
FEW, MANY = 50, 150
"""Held-out examples below which a set without decoys is too small to be sure of more, and from which it is not."""
POINTS = 4001
MOST_RATE = 0.9


class Run(NamedTuple):
    """What is known about a run beside its ranking."""

    anchors: int
    """Held-out examples."""
    classes: int
    agreement: float = 1.0
    """How far predictions for them agree with their labels, beyond chance."""
    looks: float = 0.0
    """0 to 1: whether the noise follows looks."""
    fitted: float = 1.0
    """0 to 1: whether decoys look like examples that were never trained on."""

    def competence(self, rate: float) -> float:
        """Of the model, if this share of the labels is wrong."""
        return competence_of(self.agreement, rate, self.classes)


class Rate(NamedTuple):
    """The noise rate, and what follows from it for the curve."""

    sure: float
    """Without what is doubtful."""
    low: float
    high: float
    slope: float
    estimates: dict[str, float]
    competence: float
    narrow: float = 1.0
    """0 to 1: how far the number of held-out examples limits what is known."""
    doubt: float = 0.0
    unseen: float = 0.0
    """What of the doubtful labels is wrong because classes look alike."""
    most: float = 1.0
    noisy: float = 0.0
    structured: float = 0.0
    """0 to 1: whether there is noise that decoys do not look like, and that does not follow looks."""


def rate_without_decoys(estimates: dict[str, float], run: Run, names: NoiseRate | None, *, few: bool) -> Rate:
    """The rate by held-out examples alone; `few` says that the set is too small for decoys, `names` is the rate by
    strict names.
    """
    low = min(estimates.values())
    competence = run.competence(low)
    most = 1.0
    low *= 1 - HALF * (1 - ramp(run.anchors, FEW, MANY))
    if few:
        reliable = ramp(competence, MISTAKEN, RELIABLE)
        low, most = reliable * low, mixed(UNCERTAIN, 1.0, reliable)
    if names is not None:
        low *= ramp(names.low, 0, NOTICEABLE)
    return Rate(
        _mean_rate(estimates), low, max(estimates.values()), SLOPE, dict(estimates), competence=competence, most=most
    )


def rate_with_decoys(
    points: Array,
    decoys: Array,
    margins: tuple[Array, Array] | None,
    estimates: dict[str, float],
    run: Run,
    naming: Named | None,
    sure: Sure | None,
) -> Rate:
    """The rate by decoys and held-out examples; `points` are quantiles of x over all examples, `decoys` their x."""
    joint = estimates["confident joint"]
    posterior = estimates.get("posterior", joint)
    alike = _alike(points, decoys, margins, run.classes)
    seen = rate_by_decoys(points, decoys, run.classes, *FREE)
    model = _model(alike, seen, joint, posterior, run)
    weight, replaced = _vouched(sure, model, alike.structured, run)
    held_out, by_decoys = _mean_rate(estimates), _by_decoys(points, decoys, seen, naming, run)
    if sure is not None and replaced:
        held_out = _between(held_out, sure.held_out.estimate, replaced)
        by_decoys = _between(by_decoys, max(sure.decoys, LEAST_RATE), replaced)
    mean = _between(held_out, by_decoys, HALF * run.fitted)
    if sure is not None:
        mean = _bounded(mean, sure.held_out, run)
    apart = alike.alone * (1 - run.looks) * run.fitted
    even = alike.rate if naming is None else _with_names(alike.rate, naming, run, apart)
    mean = _between(mean, even, apart)
    narrow = max(weight, alike.structured)
    found = {"confident joint": joint, "held out": held_out, "decoys": by_decoys}
    found = {name: _between(even, value, narrow) for name, value in found.items()}
    least = min(_between(even, mean, narrow), *found.values())
    rate = _between(_between(even, alike.low, alike.structured), mean, weight)
    unseen = weight * (1 - replaced) * run.looks * ramp(rate, NOTICEABLE, LITTLE) * UNSEEN * rate
    return Rate(
        rate,
        low=_between(min(alike.low / UNLIKE, *found.values()), least, weight),
        high=_between(max(alike.high * UNLIKE, *found.values()), max(found.values()), weight),
        slope=slope_at(points, decoys, rate, run.classes),
        estimates=found,
        competence=model.competence,
        narrow=narrow,
        doubt=unseen + (1 - weight) * alike.structured * max(0.0, HALF * posterior - rate, alike.rate - rate),
        unseen=unseen,
        most=mixed(UNCERTAIN, 1.0, ramp(run.competence(alike.rate), UNABLE, ABLE)),
        noisy=min(1.0, 2 * (1 - weight)) * ramp(alike.low, 0, NOTICEABLE) ** 3,
        structured=alike.structured * (1 - run.looks),
    )


class _Alike(NamedTuple):
    """The noise that looks like decoys: its rate with an interval, and whether there may be other noise (0 to 1)."""

    rate: float
    low: float
    high: float
    structured: float
    alone: float = 0.0
    """Whether there is certainly no other, and its rate is known (0 to 1)."""


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
    settled = ramp(low / max(rate, LEAST_RATE), OPEN, SETTLED)
    return _Alike(rate, low, high, structured=1 - unstructured, alone=unstructured * settled)


def _with_names(rate: float, naming: Named, run: Run, weight: float) -> float:
    """The rate of noise without structure by decoys alone, and up to a half by naming."""
    mistakes = (1 - run.competence(rate)) * (1 - rate) / max(rate, LEAST_RATE)
    weight *= HALF * naming.trust * (1 - ramp(mistakes, RARELY, OFTEN))
    return _between(rate, max(naming.rate, LEAST_RATE), weight)


def _bounded(mean: float, sure: NoiseRate, run: Run) -> float:
    """The mean of the estimates, at most what sure classes say where by these alone the model is not competent."""
    bound = (sure.estimate + sure.high) / 2
    proved = ramp(run.competence(sure.estimate) + UNCLEAR * max(run.looks, 1 - run.fitted), UNPROVED, PROVED)
    vague = 1 - ramp(sure.low / max(sure.estimate, LEAST_RATE), VAGUE, DEFINITE)
    return mean if mean <= bound else _between(bound, mean, max(proved, vague, ramp(sure.estimate, SPARSE, DENSE)))


class _Model(NamedTuple):
    """How competent a model is, from where to where that counts, and how far it is believed (0 to 1)."""

    competence: float
    asked: tuple[float, float]
    believed: float


def _model(alike: _Alike, seen: float, joint: float, posterior: float, run: Run) -> _Model:
    """Whether the model may be judged by all estimates, or by what looks like decoys alone."""
    unstructured = 1 - alike.structured
    asked = INCOMPETENT + EASIER * unstructured, COMPETENT + SURER * unstructured
    shown = alike.rate / max(joint, LEAST_RATE)
    granted = AGREEING * alike.structured * ramp(shown, DIFFERENT, SAME)
    rate = max(alike.rate, min(posterior, alike.high + alike.structured * (seen - alike.high)))
    competence = run.competence(rate)
    return _Model(competence, asked, ramp(shown, INVENTED, SHOWN) * ramp(competence + granted, *asked))


def _vouched(sure: Sure | None, model: _Model, structured: float, run: Run) -> tuple[float, float]:
    """How far the model is believed with sure classes that vouch for it, and how far these replace the estimates."""
    if sure is None:
        return model.believed, 0.0
    vouched = ramp(run.competence(sure.held_out.low), *model.asked)
    vouched *= structured * (1 - run.looks) * sure.trust
    weight = max(model.believed, vouched)
    replaced = vouched * run.fitted * sure.learned * ramp(sure.held_out.estimate, SPARSE, DENSE)
    return weight, max(replaced, 1 - model.believed / weight if weight > model.believed else 0.0)


def _by_decoys(points: Array, decoys: Array, seen: float, naming: Named | None, run: Run) -> float:
    """The rate by the likelihood of decoys; by naming as far as that can be trusted."""
    # Where the free slope sees next to nothing there is nothing to be hard: a steep one would invent it.
    steep = min(rate_by_decoys(points, decoys, run.classes, *STEEP), seen * (1 + seen / NOTICEABLE))
    if naming is None:
        return steep
    return _between(steep, max(naming.rate, LEAST_RATE), naming.trust * (1 - run.looks))


def mixed(low: float, high: float, weight: float) -> float:
    """From the first (weight 0) to the second (1)."""
    return (1 - weight) * low + weight * high


def _between(low: float, high: float, weight: float) -> float:
    """From the first rate (weight 0) to the second (1), on a logarithmic scale."""
    return float(high**weight * max(low, LEAST_RATE) ** (1 - weight))


def _mean_rate(estimates: dict[str, float]) -> float:
    """Geometric mean of rates."""
    return float(np.exp(np.log(np.clip(list(estimates.values()), LEAST_RATE, MOST_RATE)).mean()))
