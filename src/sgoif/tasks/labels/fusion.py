"""One ranking out of three signals, weighed by what the run itself says about its noise.

    v = w·z(influence) + z(−probability margin) + ½·z(logit of P(wrong | channel)),      w = min(0.3 + 2s, 1.5)

z is the distance from the median in standard deviations. s ∈ [0, 1] is how structured the noise looks (`Competence`):
where every cat is called a dog, influence knows more than any margin; where labels are wrong at random, margins do.
With very many classes, or few held-out examples per class, the channel cannot be estimated and its term is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sgoif.tasks.labels.channel import (
    SMALLEST,
    Array,
    confident_joint,
    posterior,
    sharpened,
    sharpness,
)
from sgoif.tasks.labels.evidence import Evidence

LEAST_WEIGHT, GAIN, MOST_WEIGHT = 0.3, 2.0, 1.5
CHANNEL_WEIGHT = 0.5
MOST_CLASSES, ANCHORS_PER_CLASS = 100, 5


def joint_of(anchors: Evidence, classes: int) -> Array:
    """The joint of given and true labels, estimated on the held-out examples."""
    p = anchors.probabilities(classes)
    return confident_joint(sharpened(p, sharpness(p, anchors.given)), anchors.given)


def has_channel(anchors: Evidence, classes: int) -> bool:
    """Whether there are enough held-out examples to estimate a channel."""
    return classes <= MOST_CLASSES and len(anchors) >= ANCHORS_PER_CLASS * classes


def standard(values: Array) -> Array:
    """Distance from the median in standard deviations; zero where all are alike."""
    spread = values.std()
    out: Array = (values - np.median(values)) / spread if spread > 0 else np.zeros_like(values)
    return out


def suspicion(evidence: Evidence, joint: Array | None, structure: float) -> Array:
    """v of every example, higher = more suspicious; `joint` is None where there is no channel."""
    weight = min(LEAST_WEIGHT + GAIN * structure, MOST_WEIGHT)
    v = weight * standard(evidence.influence) + standard(-evidence.margin)
    if joint is not None:
        v = v + CHANNEL_WEIGHT * standard(channel_logit(evidence, joint))
    return v


def channel_logit(evidence: Evidence, joint: Array) -> Array:
    """Logit of the probability that the given label is wrong, by the channel alone."""
    beliefs = posterior(evidence.probabilities(len(joint)), evidence.given, joint)
    right = beliefs[np.arange(len(evidence)), evidence.given]
    right = np.clip(right, SMALLEST, 1 - SMALLEST)
    out: Array = np.log((1 - right) / right)
    return out


def aligned(values: Array, own: Array, target: Array) -> Array:
    """Values by their place among `own`, moved to the same place among `target`.

    Held-out and training examples come from one population, but scores of the first are out of sample. The share of
    either above a point is the same, so quantiles carry one scale over to the other.
    """
    own, target = np.sort(own), np.sort(target)
    place = (np.searchsorted(own, values, side="left") + np.searchsorted(own, values, side="right")) / 2
    share = np.clip(place / max(len(own), 1), 0.5 / max(len(own), 1), 1 - 0.5 / max(len(own), 1))
    moved: Any = np.interp(share, (np.arange(len(target)) + 0.5) / len(target), target)
    return np.asarray(moved, dtype=np.float64)
