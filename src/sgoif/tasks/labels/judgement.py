"""All steps from evidence to probabilities, without a model: what `LabelErrors` and the benchmarks share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sgoif.errors import SgoifError
from sgoif.tasks.labels.calibration import Calibration, calibrate
from sgoif.tasks.labels.channel import Array, Labels, noise_of, posterior
from sgoif.tasks.labels.checked import checked_joint, rows_of, trust
from sgoif.tasks.labels.evidence import Evidence
from sgoif.tasks.labels.fusion import (
    Signals,
    Weights,
    aligned,
    channel_of,
    fitted,
    steady_weights,
    suspicion,
    weights,
)
from sgoif.tasks.labels.lookalike import follows_looks, lookalike
from sgoif.tasks.labels.named import by_naming

LEAST_EXAMPLES = 20
LEAST_OF_CLASS, KNOWN = 10, 0.5
"""Held-out examples of a class that tell whether it is known, and the share of them that has to agree."""


@dataclass(frozen=True)
class Judgement:
    """The verdict about training examples (decoys left out) and held-out ones."""

    training: Evidence
    suspicion: Array
    """v of the training examples; higher = more suspicious."""
    probability: Array
    """P(wrong) of the training examples."""
    anchors: Evidence
    anchor_probability: Array
    scale: Array
    """The steady score of the training examples, on which probabilities are calibrated."""
    decoy_scale: Array
    """The same of the decoys, as trained on with their wrong labels; empty without decoys."""
    calibration: Calibration
    joint: Array | None
    """Given and true labels of the held-out examples by the confident joint, [C, C]; None where they are too few."""
    weights: Weights


def judge(
    training: Evidence,
    anchors: Evidence,
    classes: int,
    structure: float,
    decoys: Labels | None = None,
    checked: Mapping[int, int] | None = None,
) -> Judgement:
    """Rank, calibrate and judge.

    `decoys` are the indices of training examples whose label is known to be wrong, `checked` gives held-out examples
    the label that somebody found to be right.
    """
    if len(training) < LEAST_EXAMPLES or not len(anchors):
        raise SgoifError(
            f"{len(training)} training and {len(anchors)} held-out examples have been scored so far; labels can be"
            f" judged from {LEAST_EXAMPLES} training examples on. Let the loop run at least one epoch"
        )
    joint = channel_of(anchors, classes)
    weigh, steady = weights(training, anchors, structure), steady_weights(structure)
    if checked and joint is not None:
        named = checked_joint(anchors, joint, *rows_of(anchors, checked, classes))
        believed = trust(anchors, joint, named)
        weigh, steady = weigh.believing(believed), steady.believing(believed)
        joint = named if believed < 1 else joint
    signals = Signals.of(training, joint)
    everything, even = signals.weighed(weigh), signals.weighed(steady)
    planted = np.isin(training.index, decoys) if decoys is not None else np.zeros(len(training), dtype=bool)
    v, scale, marked = everything[~planted], even[~planted], even[planted]
    found, looks, fit, naming = rates(anchors, joint, classes), 0.0, fitted(training, anchors), None
    if joint is not None and decoys is not None:
        own = np.flatnonzero(~planted)
        seen, given = training.classes.take(own), training.given[own]
        correlation = lookalike(seen, given, scale, joint, found["posterior"])
        looks = follows_looks(correlation, structure, fit)
        naming = by_naming(training, planted, classes, joint)
    calibration = calibrate(
        scale,
        marked if decoys is not None else None,
        found,
        anchors=len(anchors),
        classes=classes,
        agreement=agreement(anchors, classes),
        margins=(signals.logit_margin[~planted], signals.logit_margin[planted]),
        looks=looks,
        fitted=fit,
        naming=naming,
    )
    apart = suspicion(anchors, joint, weigh)
    return Judgement(
        training=training.take(np.flatnonzero(~planted)),
        suspicion=v,
        probability=calibration.probability(aligned(v, v, scale)),
        anchors=anchors,
        anchor_probability=calibration.probability(aligned(apart, apart, scale)),
        scale=scale,
        decoy_scale=marked,
        calibration=calibration,
        joint=joint,
        weights=weigh,
    )


def agreement(anchors: Evidence, classes: int) -> float:
    """How far the model's held-out predictions agree with the given labels beyond chance: 0 none, 1 all."""
    return (anchors.agreement() - 1 / classes) / (1 - 1 / classes)


def unknown_classes(anchors: Evidence, classes: int) -> dict[int, float]:
    """Classes with most of whose held-out labels the model disagrees, and the share that it agrees with."""
    agreed = anchors.probabilities(classes).argmax(1) == anchors.given
    count = np.bincount(anchors.given, minlength=classes)
    share = np.bincount(anchors.given, weights=agreed, minlength=classes) / np.maximum(count, 1)
    return {int(y): float(share[y]) for y in np.flatnonzero((count >= LEAST_OF_CLASS) & (share < KNOWN))}


def rates(anchors: Evidence, joint: Array | None, classes: int) -> dict[str, float]:
    """Noise rates by the held-out examples alone."""
    if joint is None:
        # Too few per class to count confusions: how many are out of sample given another label than the likeliest.
        return {"confident joint": (1 - anchors.agreement()) / 2}
    beliefs = posterior(anchors.probabilities(classes), anchors.given, joint)
    mean = 1 - float(beliefs[np.arange(len(anchors)), anchors.given].mean())
    return {"confident joint": noise_of(joint), "posterior": mean}


def suggestions(evidence: Evidence, *, by_group: bool) -> Labels:
    """The label each example should have if its own is wrong: the class it harms most, else the likeliest other."""
    likely, _ = evidence.classes.largest_but(evidence.given)
    if by_group:
        harmed, _ = evidence.groups.largest_but(evidence.given)
        likely = np.where(harmed >= 0, harmed, likely)
    return np.where(likely >= 0, likely, evidence.given)
