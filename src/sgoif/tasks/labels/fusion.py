"""One ranking out of several signals, weighed by what the run itself says about its noise and its fit.

    v = w·z(influence) + m·((1 − λ)·z(−probability margin) + λ·z(−logit margin)) + u·z(logit of P(wrong | channel))

z is the distance from the median in standard deviations. The weights come from the run:

- s ∈ [0, 1] is how structured the noise looks (`Competence`). Where every cat is called a dog, influence and the
  channel know more than any margin; where labels are wrong at random, margins do. w = min(0.1 + 3s, 1.5) and
  u = min(0.1 + 2s, 0.5). With t going from 0 at s = 0.15 to 1 at s = 0.3, m = 1 − t/2 and λ is multiplied by 1 − t: a
  network learns structured noise early, and its logits with it.
- λ says how far the model is from memorising: 0 where the loss on training examples is below 0.4 of the loss on
  held-out ones, 1 from 0.9 on. Logit margins are the finer measure of a model that has not fitted its data yet, and say
  nothing once it has. Noise without structure that was memorised leaves little in influence and channel either: both
  are multiplied by 1 − 0.8 (1 − λ)(1 − t), with λ before it was.
- Where the model disagrees with most held-out labels and the noise is structured, the names of classes themselves may
  be exchanged. The channel, which rests on them, is then left out (u ← u·(1 − t·d)) and margins count little
  (m = 1 − t·(0.5 + 0.3 d)), with d going from 0 where it agrees with 52% of them to 1 at 40%.

Logit margins have no fixed shape, and a curve fitted to one run's would not fit another's. Probabilities are therefore
calibrated on a score without them (`steady_weights`), and carried over to v by rank.

With very many classes, or few held-out examples per class, the channel cannot be estimated and its term is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
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

INFLUENCE, CHANNEL = (0.1, 3.0, 1.5), (0.1, 2.0, 0.5)
STEADY_INFLUENCE, STEADY_CHANNEL = (0.3, 2.0, 1.5), 0.5
"""Least weight, growth with the structure of the noise, and largest weight; the same for the steady score."""
UNSTRUCTURED, STRUCTURED = 0.15, 0.3
"""Structure of the noise up to which margins count in full, and from which they count least."""
LESS, LEAST = 0.5, 0.3
"""What structure takes from the weight of the margins, and what disagreement takes besides."""
FADED = 0.8
"""What a memorised model takes from the weights of influence and channel where the noise has no structure."""
CONTRADICTED, BELIEVED = 0.4, 0.52
"""Agreement with held-out labels below which their names are not believed, and from which they are."""
MEMORISED, LEARNING = 0.4, 0.9
"""Training loss over held-out loss at which only probability margins count, and from which only logit margins do."""
FITTED = 0.6
"""Training loss over held-out loss from which nothing was memorised that matters to a calibration."""
MOST_CLASSES, ANCHORS_PER_CLASS = 100, 5


def joint_of(anchors: Evidence, classes: int) -> Array:
    """The joint of given and true labels, estimated on the held-out examples."""
    p = anchors.probabilities(classes)
    return confident_joint(sharpened(p, sharpness(p, anchors.given)), anchors.given)


def has_channel(anchors: Evidence, classes: int) -> bool:
    """Whether there are enough held-out examples to estimate a channel."""
    return classes <= MOST_CLASSES and len(anchors) >= ANCHORS_PER_CLASS * classes


def channel_of(anchors: Evidence, classes: int) -> Array | None:
    """The joint where it can be estimated, else None."""
    return joint_of(anchors, classes) if has_channel(anchors, classes) else None


def standard(values: Array) -> Array:
    """Distance from the median in standard deviations; zero where all are alike."""
    spread = values.std()
    out: Array = (values - np.median(values)) / spread if spread > 0 else np.zeros_like(values)
    return out


@dataclass(frozen=True)
class Weights:
    """What each signal counts for."""

    influence: float
    channel: float
    logits: float
    """λ: share of the logit margin in the margin."""
    margin: float = 1.0

    def believing(self, trust: float) -> Weights:
        """What rests on the names in the given labels counts as far as those can be believed, the channel the rest."""
        channel = trust * self.channel + 1 - trust
        return Weights(trust * self.influence, channel, self.logits, trust * self.margin)


def weights(training: Evidence, anchors: Evidence, structure: float) -> Weights:
    """Weights from the structure of the noise and from how well training and held-out examples are fitted."""
    fit = ramp(loss_ratio(training, anchors), MEMORISED, LEARNING)
    learned = ramp(structure, UNSTRUCTURED, STRUCTURED)
    exchanged = learned * (1 - ramp(anchors.agreement(), CONTRADICTED, BELIEVED))
    left = 1 - FADED * (1 - fit) * (1 - learned)
    return Weights(
        influence=_growing(structure, *INFLUENCE) * left,
        channel=_growing(structure, *CHANNEL) * (1 - exchanged) * left,
        logits=fit * (1 - learned),
        margin=1 - LESS * learned - LEAST * exchanged,
    )


def loss_ratio(training: Evidence, anchors: Evidence) -> float:
    """Loss on training examples over that on held-out ones: the smaller, the more was memorised."""
    held_out = float(anchors.loss.mean())
    ratio = float(training.loss.mean()) / held_out if held_out > 0 else 1.0
    return ratio if np.isfinite(ratio) else 0.0


def fitted(training: Evidence, anchors: Evidence) -> float:
    """0 to 1: 0 where training examples, decoys among them, were memorised, 1 where they look like held-out ones."""
    return ramp(loss_ratio(training, anchors), MEMORISED, FITTED)


def ramp(value: float, low: float, high: float) -> float:
    """0 below `low`, 1 above `high`, a straight line between."""
    return float(np.clip((value - low) / (high - low), 0, 1))


def steady_weights(structure: float) -> Weights:
    """Weights of the score that probabilities are calibrated on."""
    return Weights(_growing(structure, *STEADY_INFLUENCE), STEADY_CHANNEL, 0.0)


def _growing(structure: float, least: float, gain: float, most: float) -> float:
    return min(least + gain * structure, most)


@dataclass(frozen=True)
class Signals:
    """The standardised signals of some examples, higher = more suspicious, ready for any weights."""

    influence: Array
    margin: Array
    logit_margin: Array
    channel: Array | None
    """None where there is no channel."""

    @classmethod
    def of(cls, evidence: Evidence, joint: Array | None) -> Signals:
        """Inverting the channel is the dear part; it does not depend on the weights."""
        return cls(
            standard(evidence.influence),
            standard(-evidence.margin),
            standard(-evidence.logit_margin),
            None if joint is None else standard(channel_logit(evidence, joint)),
        )

    def weighed(self, weigh: Weights) -> Array:
        """v of every example."""
        v = weigh.influence * self.influence
        v = v + weigh.margin * ((1 - weigh.logits) * self.margin + weigh.logits * self.logit_margin)
        return v if self.channel is None else v + weigh.channel * self.channel


def suspicion(evidence: Evidence, joint: Array | None, weigh: Weights) -> Array:
    """v of every example, higher = more suspicious; `joint` is None where there is no channel."""
    return Signals.of(evidence, joint).weighed(weigh)


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
