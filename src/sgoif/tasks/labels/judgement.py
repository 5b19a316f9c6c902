"""All steps from evidence to probabilities, without a model: what `LabelErrors`, audits and the benchmarks share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sgoif.errors import SgoifError
from sgoif.tasks.deviations import aligned, standard
from sgoif.tasks.labels.balance import balanced
from sgoif.tasks.labels.calibration import Curve
from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.checked import checked_joint, rows_of, trust
from sgoif.tasks.labels.evidence import Evidence
from sgoif.tasks.labels.noise_rate import NoiseRate, knows_enough, noise_rate
from sgoif.tasks.labels.ranking import Weights, channel_of, has_channel, suspicion, weights, wrong_by_joint
from sgoif.tasks.labels.structure import structure_of
from sgoif.tasks.review.recalibration import length_at_fdr

Checked = Mapping[int, int] | None
LEAST_EXAMPLES = 20


class Tier(NamedTuple):
    """So many examples, one after the other in the ranking, and the expected share of wrong labels among them."""

    name: str
    size: int
    low: float
    high: float


@dataclass(frozen=True)
class Judgement:
    """The verdict about training examples and held-out ones."""

    training: Evidence
    suspicion: Array
    """v of the training examples; higher = more suspicious."""
    anchors: Evidence
    anchor_suspicion: Array
    """v of the held-out examples, on the scale of the training examples."""
    curve: Curve
    rate: NoiseRate
    estimates: dict[str, float]
    """What each estimator says of the noise rate."""
    knows: bool
    """Whether the model knows enough to say that labels are surely wrong."""
    joint: Array | None
    """Given and true labels of the held-out examples by the confident joint, [C, C]; None where they are too few."""
    weights: Weights
    structure: float
    """Of the noise, from 0 to 1."""

    @property
    def probability(self) -> Array:
        """P(wrong) of the training examples."""
        return self.curve.probability(self.suspicion, self.rate.estimate)

    @property
    def anchor_probability(self) -> Array:
        """P(wrong) of the held-out examples."""
        return self.curve.probability(self.anchor_suspicion, self.rate.estimate)

    def selected(self, v: Array, fdr: float) -> Labels:
        """Positions of the surely wrong among examples of these v, if hardly more are than is proven."""
        order = np.argsort(-v, kind="stable")
        return np.asarray(order[: length_at_fdr(self.curve.probability(v[order], self.rate.listed), fdr)])

    def tiers(self, v: Array, fdr: float) -> list[Tier]:
        """The ranking of examples of these v in three parts: surely wrong, worth a look, and fine."""
        surely, v = len(self.selected(v, fdr)), np.sort(v)[::-1]
        ends = self.curve.probability(v, self.rate.low), self.curve.probability(v, self.rate.high)
        look = max(surely, round(self.rate.high * len(v)))
        parts = {"surely wrong": (0, surely), "worth a look": (surely, look), "fine": (look, len(v))}
        return [
            Tier(name, stop - start, *(float(p[start:stop].mean()) if stop > start else 0.0 for p in ends))
            for name, (start, stop) in parts.items()
        ]


def judge(
    training: Evidence,
    anchors: Evidence,
    classes: int,
    checked: Checked = None,
    beside: Array | None = None,
    cross_fitted: bool = False,
) -> Judgement:
    """Rank, calibrate and judge; `checked` gives held-out examples the label that somebody found to be right.

    `beside`: what else speaks against each example, by index, in deviations; what is said of one example is added up.
    `cross_fitted`: held-out examples are training examples too, each held out by one network of several. The curve is
    fitted on the sum by P(wrong) of the same example out of sample.
    """
    if len(training) < LEAST_EXAMPLES or not len(anchors):
        raise SgoifError(
            f"{len(training)} training and {len(anchors)} held-out examples have been scored so far; labels can be"
            f" judged from {LEAST_EXAMPLES} training examples on. Let the loop run at least one epoch"
        )
    if has_channel(anchors, classes):
        training, anchors = balanced(training, anchors, classes, structure_of(training, classes))
    structure, joint = structure_of(training, classes), channel_of(anchors, classes)
    weigh = weights(training, anchors, structure, classes)
    if checked and joint is not None:
        named = checked_joint(anchors, joint, *rows_of(anchors, checked, classes))
        weigh = weigh.believing(trust(anchors, joint, named))
        joint = named if weigh.trust < 1 else joint
    wrong = wrong_by_joint(anchors, joint)
    v, apart = suspicion(training, wrong_by_joint(training, joint), weigh), suspicion(anchors, wrong, weigh)
    if cross_fitted:
        at = np.searchsorted(training.index, anchors.index)
        v = 2 * standard(v)  # of an example that no head held out, training counts twice
        v[at] = v[at] / 2 + standard(apart)
    elif beside is not None:
        v, apart = standard(v), standard(apart)
    if beside is not None:
        v, apart = v + beside[training.index], apart + beside[anchors.index]
    apart = v[at] if cross_fitted else apart
    held_out = apart if cross_fitted else aligned(apart, apart, v)
    rate, estimates = noise_rate(anchors if cross_fitted else training, anchors, classes, wrong)
    return Judgement(
        training=training,
        suspicion=v,
        anchors=anchors,
        anchor_suspicion=held_out,
        curve=Curve.fitted(v, apart, (~anchors.agrees).astype(float) if wrong is None else wrong),
        rate=rate,
        estimates=estimates,
        knows=knows_enough(1 - estimates["disagreement"], classes),
        joint=joint,
        weights=weigh,
        structure=structure,
    )


def suggestions(evidence: Evidence, *, by_group: bool) -> Labels:
    """The label each example should have if its own is wrong: the class it harms most, else the likeliest other."""
    likely, _ = evidence.classes.largest(but=evidence.given)
    if by_group:
        harmed, _ = evidence.groups.largest(but=evidence.given)
        likely = np.where(harmed >= 0, harmed, likely)
    return np.where(likely >= 0, likely, evidence.given)
