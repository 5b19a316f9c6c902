"""All steps from evidence to probabilities, without a model: what `LabelErrors` and the benchmarks share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sgoif.errors import SgoifError
from sgoif.tasks.labels.calibration import Calibration, calibrate
from sgoif.tasks.labels.channel import Array, Labels, noise_of, posterior
from sgoif.tasks.labels.checked import checked_joint, rows_of, trust
from sgoif.tasks.labels.confused import KNOWN, LEAST_OF_CLASS, Limits, class_limits, confusable
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
from sgoif.tasks.labels.named import Named, by_naming, sharp
from sgoif.tasks.labels.strict import by_strict_names
from sgoif.tasks.labels.structure import structure_of
from sgoif.tasks.labels.sure import by_sure_classes

LEAST_EXAMPLES = 20


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
    decoy_given: Labels
    """These labels."""
    calibration: Calibration
    joint: Array | None
    """Given and true labels of the held-out examples by the confident joint, [C, C]; None where they are too few."""
    weights: Weights
    structure: float = 0.0
    """Of the noise, from 0 to 1."""
    limits: Limits | None = None
    """The most that is said about labels of each class; None where the model knows its classes."""

    def stated(self, given: Labels, v: Array) -> Array:
        """P(wrong) of labels at such places on `scale`."""
        return _limited(self.calibration.probability(v), self.limits, given, v)


def judge(
    training: Evidence,
    anchors: Evidence,
    classes: int,
    decoys: Labels | None = None,
    checked: Mapping[int, int] | None = None,
    *,
    strict: bool = True,
) -> Judgement:
    """Rank, calibrate and judge.

    `decoys` are the indices of training examples whose label is known to be wrong, `checked` gives held-out examples
    the label that somebody found to be right. Without decoys, and with `strict`, strict names have to say that there is
    noise at all.
    """
    if len(training) < LEAST_EXAMPLES or not len(anchors):
        raise SgoifError(
            f"{len(training)} training and {len(anchors)} held-out examples have been scored so far; labels can be"
            f" judged from {LEAST_EXAMPLES} training examples on. Let the loop run at least one epoch"
        )
    joint = channel_of(anchors, classes)
    planted = np.isin(training.index, decoys) if decoys is not None else np.zeros(len(training), dtype=bool)
    structure = structure_of(training.take(np.flatnonzero(~planted)), classes)
    weigh, steady = weights(training, anchors, structure), steady_weights(structure)
    if checked and joint is not None:
        named = checked_joint(anchors, joint, *rows_of(anchors, checked, classes))
        believed = trust(anchors, joint, named)
        weigh, steady = weigh.believing(believed), steady.believing(believed)
        joint = named if believed < 1 else joint
    signals = Signals.of(training, joint)
    everything, even = signals.weighed(weigh), signals.weighed(steady)
    v, scale, marked = everything[~planted], even[~planted], even[planted]
    found, looks, fit, naming, sure = rates(anchors, joint, classes), 0.0, fitted(training, anchors), None, None
    if joint is not None and decoys is not None:
        own = np.flatnonzero(~planted)
        seen, given = training.classes.take(own), training.given[own]
        correlation = lookalike(seen, given, scale, joint, found["posterior"])
        looks = follows_looks(correlation, structure, fit)
        naming = by_naming(training, planted, classes, joint)
        sure = by_sure_classes(training, planted, anchors, classes, joint)
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
        names=by_strict_names(anchors, classes) if decoys is None and strict else None,
        sure=sure,
    )
    limits = None if naming is None else _limits(training, planted, even, anchors, classes, calibration, naming, looks)
    apart = suspicion(anchors, joint, weigh)
    places = aligned(v, v, scale), aligned(apart, apart, scale)
    first = [calibration.probability(place) for place in places]
    labels = training.given[~planted], anchors.given
    probability, held_out = (_limited(p, limits, y, x) for p, y, x in zip(first, labels, places, strict=True))
    whole = sum(float(p.sum()) for p in first)
    kept = (float(probability.sum()) + float(held_out.sum())) / whole if limits is not None and whole > 0 else 1.0
    calibration = replace(calibration, kept=kept)
    return Judgement(
        training=training.take(np.flatnonzero(~planted)),
        suspicion=v,
        probability=probability,
        anchors=anchors,
        anchor_probability=held_out,
        scale=scale,
        decoy_scale=marked,
        decoy_given=training.given[planted],
        calibration=calibration,
        joint=joint,
        weights=weigh,
        structure=structure,
        limits=limits,
    )


def _limits(
    training: Evidence,
    planted: np.ndarray[tuple[int], np.dtype[np.bool_]],
    v: Array,
    anchors: Evidence,
    classes: int,
    calibration: Calibration,
    naming: Named,
    looks: float,
) -> Limits | None:
    """Limits by class as far as the model may take right labels of a class for wrong ones."""
    weight = confusable(calibration.competence, naming.trust, looks)
    if not weight:
        return None
    return class_limits(
        sharp(training, planted, classes),
        training.given,
        planted,
        v,
        class_agreement(anchors, classes),
        calibration.rate.estimate,
        weight,
    )


def _limited(probability: Array, limits: Limits | None, given: Labels, v: Array) -> Array:
    return probability if limits is None else np.minimum(probability, limits.of(given, v))


def agreement(anchors: Evidence, classes: int) -> float:
    """How far the model's held-out predictions agree with the given labels beyond chance: 0 none, 1 all."""
    return (anchors.agreement() - 1 / classes) / (1 - 1 / classes)


def class_agreement(anchors: Evidence, classes: int) -> tuple[Labels, Array]:
    """Held-out examples of each class, and the share of their labels that the model agrees with."""
    agreed = anchors.likeliest(classes) == anchors.given
    count: Labels = np.bincount(anchors.given, minlength=classes)
    share: Array = np.bincount(anchors.given, weights=agreed, minlength=classes) / np.maximum(count, 1)
    return count, share


def unknown_classes(anchors: Evidence, classes: int) -> dict[int, float]:
    """Classes with most of whose held-out labels the model disagrees, and the share that it agrees with."""
    count, share = class_agreement(anchors, classes)
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
