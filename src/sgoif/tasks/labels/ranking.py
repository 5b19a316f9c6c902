"""One ranking out of several signals, weighed by what the run itself says about its noise.

    v = (1 − t) · u + t · (z(−probability margin) + z(logit of P(wrong | channel)) + κ · z(influence))
    u = (1 − λ) · z(−probability margin) + λ · z(−logit margin)

z is the distance from the median in standard deviations. The weights come from the run:

- t = s^1.5, s being how structured the noise is (`structure`). Where labels are wrong at random, margins know most.
  Where every cat is called a dog, a network learns the error, its logits with it, and influence and the channel know
  more than any margin.
- κ = √n / 4 with n held-out examples per class: the noise of the mean of so many gradients falls with √n.
- λ = min(r / 0.7, 1), r being the loss on training examples over that on held-out ones. Logit margins are the finer
  measure of a model that has not fitted its data yet, and say nothing once it has memorised them.

Margins are those of `balance`. With very many classes, or few held-out examples per class, the channel cannot be
estimated and its term is left out. Decision 10 says with which runs in view the numbers were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sgoif.tasks.deviations import standard
from sgoif.tasks.labels.channel import SMALLEST, Array, confident_joint, posterior, sharpened, sharpness
from sgoif.tasks.labels.evidence import Evidence

POWER, INFLUENCE, FITTED = 1.5, 0.25, 0.7
"""Of s in t; κ over the square root of the held-out examples per class; r from which λ is one."""
MOST_CLASSES, ANCHORS_PER_CLASS = 100, 5
"""What can be estimated in memory and time: classes of a channel, and held-out examples of each."""


def has_channel(anchors: Evidence, classes: int) -> bool:
    """Whether the held-out examples are enough to tell given from true labels."""
    return classes <= MOST_CLASSES and len(anchors) >= ANCHORS_PER_CLASS * classes


def channel_of(anchors: Evidence, classes: int) -> Array | None:
    """The joint of given and true labels by the held-out examples; None where it cannot be estimated."""
    if not has_channel(anchors, classes):
        return None
    p = anchors.probabilities(classes)
    return confident_joint(sharpened(p, sharpness(p, anchors.given)), anchors.given)


@dataclass(frozen=True)
class Weights:
    """What each signal counts for."""

    structured: float
    """t"""
    influence: float
    """κ"""
    logits: float
    """λ"""
    trust: float = 1.0
    """How far the names in the given labels can be believed (`checked`); the rest is left to the channel."""

    def believing(self, trust: float) -> Weights:
        """The same where names can be believed so far only."""
        return replace(self, trust=trust)


def weights(training: Evidence, anchors: Evidence, structure: float, classes: int) -> Weights:
    """Weights from the structure of the noise, the held-out examples and the fit."""
    held_out = float(anchors.loss.mean())
    ratio = float(training.loss.mean()) / held_out if held_out > 0 else 1.0
    fit = min(ratio / FITTED, 1.0) if np.isfinite(ratio) else 0.0
    return Weights(structure**POWER, INFLUENCE * float(np.sqrt(len(anchors) / classes)), fit)


def suspicion(evidence: Evidence, wrong: Array | None, weigh: Weights) -> Array:
    """v of every example, higher = more suspicious; `wrong` is P(wrong) by the channel, None where there is none."""
    margin, logits = standard(-evidence.margin), standard(-evidence.logit_margin)
    channel = np.zeros(len(evidence)) if wrong is None else standard(logit(wrong))
    plain = (1 - weigh.logits) * margin + weigh.logits * logits
    learned = margin + channel + weigh.influence * standard(evidence.influence)
    v = (1 - weigh.structured) * plain + weigh.structured * learned
    return np.asarray(weigh.trust * v + (1 - weigh.trust) * channel)


def wrong_by_joint(evidence: Evidence, joint: Array | None) -> Array | None:
    """P(the given label is wrong) of every example, by the channel alone; None where there is none."""
    if joint is None:
        return None
    truth = posterior(evidence.probabilities(len(joint)), evidence.given, joint)
    return np.asarray(1 - truth[np.arange(len(truth)), evidence.given])


def logit(probability: Array) -> Array:
    """log p / (1 − p), finite."""
    p = np.clip(probability, SMALLEST, 1 - SMALLEST)
    return np.asarray(np.log(p / (1 - p)))
