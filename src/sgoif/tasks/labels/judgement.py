"""All steps from evidence to probabilities, without a model: what `LabelErrors` and the benchmarks share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sgoif.errors import SgoifError
from sgoif.tasks.labels.calibration import Curve, selected_at
from sgoif.tasks.labels.channel import Array, Labels, wrong_by_channel
from sgoif.tasks.labels.checked import checked_joint, rows_of, trust
from sgoif.tasks.labels.evidence import Evidence
from sgoif.tasks.labels.noise_rate import NoiseRate, knows_enough, noise_rate
from sgoif.tasks.labels.ranking import Weights, aligned, channel_of, suspicion, weights
from sgoif.tasks.labels.structure import structure_of

LEAST_EXAMPLES = 20


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
        return selected_at(self.curve.probability(v, self.rate.listed), fdr)


def judge(
    training: Evidence,
    anchors: Evidence,
    classes: int,
    checked: Mapping[int, int] | None = None,
) -> Judgement:
    """Rank, calibrate and judge.

    `checked` gives held-out examples the label that somebody found to be right.
    """
    if len(training) < LEAST_EXAMPLES or not len(anchors):
        raise SgoifError(
            f"{len(training)} training and {len(anchors)} held-out examples have been scored so far; labels can be"
            f" judged from {LEAST_EXAMPLES} training examples on. Let the loop run at least one epoch"
        )
    structure, joint = structure_of(training, classes), channel_of(anchors, classes)
    weigh = weights(training, anchors, structure, classes)
    if checked and joint is not None:
        named = checked_joint(anchors, joint, *rows_of(anchors, checked, classes))
        weigh = weigh.believing(trust(anchors, joint, named))
        joint = named if weigh.trust < 1 else joint
    v, apart = suspicion(training, joint, weigh), suspicion(anchors, joint, weigh)
    wrong = None if joint is None else wrong_by_channel(anchors.probabilities(classes), anchors.given, joint)
    rate, estimates = noise_rate(training, anchors, classes, wrong)
    doubt = (anchors.likeliest(classes)[0] != anchors.given).astype(float) if wrong is None else wrong
    held_out = aligned(apart, apart, v)
    return Judgement(
        training,
        v,
        anchors,
        held_out,
        Curve.fitted(v, apart, doubt),
        rate,
        estimates,
        knows_enough(1 - estimates["disagreement"], classes),
        joint,
        weigh,
        structure,
    )


def class_agreement(anchors: Evidence, classes: int) -> tuple[Labels, Array]:
    """Held-out examples of each class, and the share of their labels that the model agrees with."""
    agreed = anchors.likeliest(classes)[0] == anchors.given
    count: Labels = np.bincount(anchors.given, minlength=classes)
    share: Array = np.bincount(anchors.given, weights=agreed, minlength=classes) / np.maximum(count, 1)
    return count, share


def suggestions(evidence: Evidence, *, by_group: bool) -> Labels:
    """The label each example should have if its own is wrong: the class it harms most, else the likeliest other."""
    likely, _ = evidence.classes.largest_but(evidence.given)
    if by_group:
        harmed, _ = evidence.groups.largest_but(evidence.given)
        likely = np.where(harmed >= 0, harmed, likely)
    return np.where(likely >= 0, likely, evidence.given)
