"""Probabilities as they would be if labels were as frequent as the true classes are.

A network believes in a class as often as its label is given. Where wrong labels make some names frequent and others
rare, it calls examples by the frequent names, and its margins take wrong labels for right ones. So probabilities are
weighed by a factor per class,

    q_k ∝ f_k p_k,    with f such that the mean of q over the training examples is π, the share of each true class.

π is not known. With f for equally frequent classes, the confident joint (`channel`) counts how many examples look like
each class; of that, as much is believed as the model agrees with held-out labels beyond chance, A:

    π_k ∝ counted_k^A

A model that knows little leaves the classes equally frequent. Labels that are wrong at random leave names nearly as
frequent as they are in truth, so that f counts in full only where the noise is structured: its exponent rises with s
(`structure`) and is 1 from s = 0.15 on. Margins and likeliest classes are then read off q, and logit margins are moved
by log f. Where no channel can be estimated, nothing is weighed.
"""

from dataclasses import replace

import numpy as np

from sgoif.tasks.labels.channel import ROWS_AT_ONCE, SMALLEST, STEPS, Array, confident_joint
from sgoif.tasks.labels.evidence import Evidence, Rows

STRUCTURED, RAREST = 0.15, 1e-3
"""Structure of the noise from which f counts in full; least share of a class."""


def balanced(training: Evidence, anchors: Evidence, classes: int, structure: float) -> tuple[Evidence, Evidence]:
    """The same examples with the probabilities q."""
    there = np.bincount(training.given, minlength=classes) > 0
    some = training.take(np.arange(0, len(training), 1 + len(training) * classes // ROWS_AT_ONCE))
    p = np.maximum(some.probabilities(classes), SMALLEST)
    q = p * factors(p, there / there.sum())
    joint = confident_joint(q / q.sum(1, keepdims=True), some.given)
    knowledge = max(anchors.agreement() * classes - 1, 0.0) / max(classes - 1, 1)
    share = np.where(there, np.maximum(joint.sum(0), RAREST) ** knowledge, 0.0)
    factor = factors(p, share / share.sum()) ** min(structure / STRUCTURED, 1)
    return weighed(training, factor), weighed(anchors, factor)


def factors(p: Array, share: Array) -> Array:
    """f of every class, such that the mean of f ∘ p, normalised, is this share; 1 for a class that has none."""
    found, there = np.ones(len(share)), share > 0
    for _ in range(STEPS):
        q = p * found
        found[there] *= (share / (q / q.sum(1, keepdims=True)).mean(0))[there]
    return found


def weighed(evidence: Evidence, factor: Array) -> Evidence:
    """The evidence with probabilities weighed by class; what lies outside the slots has the factor 1."""
    mean, slots, given = evidence.classes.mean.astype(np.float64), evidence.classes.slots, evidence.given
    column = np.broadcast_to(np.arange(mean.shape[1]), mean.shape) if slots is None else slots
    q = np.where(column < 0, 0.0, np.maximum(mean, SMALLEST) * factor[column])
    outside = np.maximum(1 - np.where(column < 0, 0.0, mean).sum(1), 0.0) if slots is not None else 0.0
    classes = Rows(q / (q.sum(1) + outside)[:, None], slots)
    rival, largest = classes.largest(but=given)
    own = np.where(column == given[:, None], classes.mean, 0.0).sum(1)
    moved = np.log(factor[given]) - np.where(rival < 0, 0.0, np.log(factor[rival]))
    margin = np.maximum(own, SMALLEST) - np.where(rival < 0, 0.0, largest)
    return replace(evidence, classes=classes, margin=margin, logit_margin=evidence.logit_margin + moved)
