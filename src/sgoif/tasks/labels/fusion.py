"""One ranking out of several signals, weighed by what the run itself says about its noise and its fit.

    v = w·z(influence) + m·((1 − λ)·z(−probability margin) + λ·z(−logit margin)) + u·z(logit of P(wrong | channel))
        + b·z(balanced loss)

z is the distance from the median in standard deviations. The weights come from the run:

- s ∈ [0, 1] is how structured the noise looks (`structure`). Where every cat is called a dog, influence and the
  channel know more than any margin; where labels are wrong at random, margins do. w = min(0.1 + 3s, 1.5) and
  u = min(0.1 + 2s, 0.5). With t going from 0 at s = 0.15 to 1 at s = 0.3, m = 1 − t/2 and λ is multiplied by 1 − t: a
  network learns structured noise early, and its logits with it.
- λ says how far the model is from memorising: 0 where the loss on training examples is below 0.4 of the loss on
  held-out ones, 1 from 0.9 on. Logit margins are the finer measure of a model that has not fitted its data yet, and say
  nothing once it has. Noise without structure that was memorised leaves little in influence and channel either: both
  are multiplied by 1 − 0.8 (1 − λ)(1 − t), with λ before it was.
- Where the model disagrees with most held-out labels and the noise is structured, the names of classes themselves may
  be exchanged: a class is called something else more often than by its own name, by the model as well. Channel and
  margins, which rest on names, are then left out (u ← u·(1 − t·d) and m = 1 − t·(1 + d)/2), with d going from 0 where
  the model agrees with 52% of them to 1 at 40%. The balanced loss takes their place, b = 0.75·w·t·d. It is −log q of
  the given label, q ∝ f∘p, with one factor f per class such that all given classes are equally frequent. A name that
  swallowed other classes is then worth little, and one that hardly ever is the likeliest is believed of the examples
  that it fits better than others. Sparse noise teaches the model its names so well that it agrees with them, which q
  does not: the agreement is the mean of both.

Logit margins have no fixed shape, and a curve fitted to one run's would not fit another's. Probabilities are therefore
calibrated on a score without them (`steady_weights`), and carried over to v by rank.

With very many classes, or few held-out examples per class, the channel cannot be estimated and its term is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sgoif.tasks.labels.channel import (
    ROWS_AT_ONCE,
    SMALLEST,
    STEPS,
    Array,
    confident_joint,
    normalised,
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
LESS, BALANCED = 0.5, 0.75
"""What structure takes from the weight of the margins, and disagreement once more; the balanced loss over influence."""
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
    return confident_joint(sharp_held_out(anchors, classes), anchors.given)


def sharp_held_out(anchors: Evidence, classes: int) -> Array:
    """Probabilities of the held-out examples, as sure as they are right, [n, C]."""
    p = anchors.probabilities(classes)
    return sharpened(p, sharpness(p, anchors.given))


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
    balanced: float = 0.0
    balance: Array | None = None
    """f: the factor of each class in the balanced loss; None where that does not count."""

    def believing(self, trust: float) -> Weights:
        """What rests on the names in the given labels counts as far as those can be believed, the channel the rest."""
        channel = trust * self.channel + 1 - trust
        influence, margin, balanced = trust * self.influence, trust * self.margin, trust * self.balanced
        return replace(self, influence=influence, channel=channel, margin=margin, balanced=balanced)


def weights(training: Evidence, anchors: Evidence, structure: float) -> Weights:
    """Weights from the structure of the noise and from how well training and held-out examples are fitted."""
    fit = ramp(loss_ratio(training, anchors), MEMORISED, LEARNING)
    learned = ramp(structure, UNSTRUCTURED, STRUCTURED)
    exchanged = learned * (1 - ramp(_agreement(anchors), CONTRADICTED, BELIEVED)) if learned else 0.0
    left = 1 - FADED * (1 - fit) * (1 - learned)
    influence = _growing(structure, *INFLUENCE) * left
    return Weights(
        influence=influence,
        channel=_growing(structure, *CHANNEL) * (1 - exchanged) * left,
        logits=fit * (1 - learned),
        margin=1 - LESS * (learned + exchanged),
        balanced=BALANCED * exchanged * influence,
        balance=class_balance(training) if exchanged else None,
    )


def class_balance(evidence: Evidence) -> Array:
    """Factors on probabilities with which all given classes are equally frequent; of many examples, some tell them."""
    rows = evidence.classes
    classes = rows.mean.shape[1] if rows.slots is None else 1 + max(int(rows.slots.max()), int(evidence.given.max()))
    there = np.bincount(evidence.given, minlength=classes) > 0
    some = evidence.take(np.arange(0, len(evidence), 1 + len(evidence) * classes // ROWS_AT_ONCE))
    p, factor = normalised(some.probabilities(classes)), np.ones(classes)
    for _ in range(STEPS):
        q = p * factor
        frequency = (q / q.sum(1, keepdims=True)).mean(0)
        factor[there] /= there.sum() * frequency[there]
    return factor


def _agreement(anchors: Evidence) -> float:
    """Agreement with held-out labels: the mean of what is likeliest as it is and with all classes equally frequent."""
    balance = class_balance(anchors)
    balanced = anchors.likeliest(len(balance), balance)
    return (anchors.agreement() + float((balanced == anchors.given).mean())) / 2


def balanced_loss(evidence: Evidence, balance: Array) -> Array:
    """−log q of the given labels, q ∝ balance ∘ p."""
    p, slots, given = evidence.classes.mean.astype(np.float64), evidence.classes.slots, evidence.given[:, None]
    columns = np.arange(p.shape[1])[None] if slots is None else slots
    q = np.where(columns >= 0, np.maximum(p, SMALLEST) * balance.take(columns, mode="clip"), 0)
    own = np.where(columns == given, q, 0).sum(1)
    own = np.where(own > 0, own, SMALLEST * balance.take(given[:, 0], mode="clip"))
    out: Array = np.log(np.maximum(q.sum(1), own) / own)
    return out


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


def competence(agreement: float, rate: float, classes: int) -> float:
    """Agreement beyond chance over what a perfect model would reach if so many labels were wrong."""
    return agreement / max(1 - rate * classes / (classes - 1), 0.05)


def steady_weights(structure: float) -> Weights:
    """Weights of the score that probabilities are calibrated on."""
    return Weights(_growing(structure, *STEADY_INFLUENCE), STEADY_CHANNEL, 0.0)


def _growing(structure: float, least: float, gain: float, most: float) -> float:
    return min(least + gain * structure, most)


@dataclass(frozen=True)
class Signals:
    """The standardised signals of some examples, higher = more suspicious, ready for any weights."""

    evidence: Evidence
    influence: Array
    margin: Array
    logit_margin: Array
    channel: Array | None
    """None where there is no channel."""

    @classmethod
    def of(cls, evidence: Evidence, joint: Array | None) -> Signals:
        """Inverting the channel is the dear part; it does not depend on the weights."""
        return cls(
            evidence,
            standard(evidence.influence),
            standard(-evidence.margin),
            standard(-evidence.logit_margin),
            None if joint is None else standard(channel_logit(evidence, joint)),
        )

    def weighed(self, weigh: Weights) -> Array:
        """v of every example."""
        v = weigh.influence * self.influence
        v = v + weigh.margin * ((1 - weigh.logits) * self.margin + weigh.logits * self.logit_margin)
        if weigh.balance is not None:
            v = v + weigh.balanced * standard(balanced_loss(self.evidence, weigh.balance))
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
