"""How many labels are wrong, by the training examples for which the model names another class.

A training example is *named* where its mean probability of a class that is not its label reaches the mean of that class
among the examples that were given it, as in the confident joint (and as there of probabilities as sharp as labels
allow, without which fewer decoys are named than errors that have structure). Right labels of unclear images hardly ever
are, and wrong ones are as often as decoys are, a share h of both. A share π/(C − 1) of the decoys is right after all,
so that

    n = π h        of the examples, and        d = (1 − π/(C − 1)) h        of the decoys are named,

and π follows from n/d. Nothing in this knows which pairs of classes errors come from. The score that probabilities are
calibrated on does, and where noise has structure its errors stand above decoys, which are drawn evenly: the likelihood
of the decoys then counts too many. Naming fails where the model has learned the wrong names of a class, which are then
likely themselves (`unlearned`), where it has memorised so much that few decoys are named at all, and where labels are
wrong because images are unclear, as people's are (see `lookalike`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sgoif.tasks.labels.channel import Array, Labels, confident_classes, sharpened, sharpness
from sgoif.tasks.labels.evidence import Evidence
from sgoif.tasks.labels.fusion import ramp

LEAST_NAMED, ENOUGH = 30, 20_000
"""Decoys that have to be named for their share to be known, and examples that tell how sharp probabilities are."""
MOST = 0.5
"""Share of the decoys that is named by a model that has not memorised them."""
RARE, LEARNED = 1 / 4, 1 / 3
"""How often a class has a wrong name, over how often the right one, up to which it is not learned, and from which."""


class Named(NamedTuple):
    """The noise rate by naming, and how far it can be believed, 0 to 1."""

    rate: float
    trust: float


def by_naming(
    training: Evidence, planted: np.ndarray[tuple[int], np.dtype[np.bool_]], classes: int, joint: Array
) -> Named | None:
    """π, `planted` saying which of the training examples are decoys; None where too few of those are named."""
    p, own = sharp(training, planted, classes), np.flatnonzero(~planted)
    names = confident_classes(p, p[own], training.given[own])
    other = (names >= 0) & (names != training.given)
    if other[planted].sum() < LEAST_NAMED:
        return None
    seen = float(other[planted].mean())
    ratio = float(other[own].mean()) / seen
    return Named(rate_of(ratio, classes), unlearned(joint) * min(1.0, seen / MOST))


def rate_of(ratio: float, classes: int) -> float:
    """π of n/d."""
    return ratio / (1 + ratio / (classes - 1))


def thresholds(probabilities: Array, given: Labels, levels: Sequence[float]) -> Array:
    """How sure names have to be at levels other than the mean: quantiles [levels, C] of p_y where y was given."""
    classes = probabilities.shape[1]
    found: Array = np.full((len(levels), classes), np.inf)
    for y in range(classes):
        mine = probabilities[given == y, y]
        if len(mine):
            found[:, y] = np.quantile(mine, levels)
    return found


def sharp(training: Evidence, planted: np.ndarray[tuple[int], np.dtype[np.bool_]], classes: int) -> Array:
    """Mean probabilities of training examples, as sharp as the labels that are no decoys allow."""
    p, own = training.probabilities(classes), np.flatnonzero(~planted)
    some = own[:: max(1, len(own) // ENOUGH)]
    return sharpened(p, sharpness(p[some], training.given[some]))


def unlearned(joint: Array) -> float:
    """0 to 1: how far wrong names are too rare to be learned; the mean of T[y, ỹ]/T[y, y] over wrong labels tells."""
    wrong = joint.T * (1 - np.eye(len(joint)))
    odds = wrong / np.maximum(np.diag(joint)[:, None], 1e-12)
    return 1 - ramp(float((wrong * odds).sum() / max(wrong.sum(), 1e-12)), RARE, LEARNED)
