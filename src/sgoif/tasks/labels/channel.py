"""How true labels become given ones, without a single clean label.

Held-out examples are never trained on, so their probabilities p(ỹ|x) can be believed once their temperature is fitted
to the labels they came with. A *confident joint* counted on them says which given label ỹ hides which true label y:
an example counts as class j where p_j reaches the mean p_j of the examples given as j. Its rows are scaled to the
number of examples with that given label.

The channel T[y, ỹ] that follows turns p(ỹ|x) of any example into what is believed about its true label:

    q ← q ∘ T(p / Tᵀq)        repeated (Richardson–Lucy): the q(y|x) ≥ 0 whose image under T is p
    P(y|x, ỹ) ∝ q(y|x) T[y, ỹ]
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Labels = np.ndarray[Any, np.dtype[np.int64]]

SHARPEST, FLATTEST = 8.0, 0.1
STEPS = 30
SMALLEST = 1e-4
"""Least probability that is told from zero: the ledger keeps probabilities in half precision."""
ROWS_AT_ONCE = 2**16
"""Numbers in one block of probabilities, which then stays in a cache."""


def normalised(probabilities: Array) -> Array:
    """Rows that sum to one, none of their entries below `SMALLEST`."""
    p = np.clip(probabilities.astype(np.float64), SMALLEST, None)
    return np.asarray(p / p.sum(1, keepdims=True))


def sharpness(probabilities: Array, labels: Labels) -> float:
    """The exponent that makes probabilities fit the labels best: a golden-section search on the mean log-likelihood."""
    logs, rows = np.log(normalised(probabilities)), np.arange(len(labels))

    def loss(log_exponent: float) -> float:
        z = np.exp(log_exponent) * logs
        top = z.max(1)
        return float(np.mean(top + np.log(np.exp(z - top[:, None]).sum(1)) - z[rows, labels]))

    low, high = np.log(FLATTEST), np.log(SHARPEST)
    ratio = (np.sqrt(5) - 1) / 2
    for _ in range(40):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if loss(left) < loss(right) else (left, high)
    return float(np.exp((low + high) / 2))


def sharpened(probabilities: Array, exponent: float) -> Array:
    """p^exponent, normalised."""
    p = normalised(probabilities) ** exponent
    return np.asarray(p / p.sum(1, keepdims=True))


def confident_joint(probabilities: Array, labels: Labels) -> Array:
    """Share of examples with given label i (row) and confident class j (column), [C, C], sums to one."""
    classes = probabilities.shape[1]
    given = np.bincount(labels, minlength=classes)
    own = np.bincount(labels, weights=probabilities[np.arange(len(labels)), labels], minlength=classes)
    threshold = np.where(given > 0, own / np.maximum(given, 1), np.inf)
    reached = probabilities >= threshold
    best, confident = np.where(reached, probabilities, -1.0).argmax(1), reached.any(1)
    counts = np.bincount(labels * classes + best, confident, classes**2).reshape(classes, classes)
    empty = counts.sum(1) == 0
    counts[empty, empty] = 1.0  # a class that nobody is confident about is taken at its word
    scaled = counts / counts.sum(1, keepdims=True) * given[:, None]
    return np.asarray(scaled / scaled.sum())


def posterior(probabilities: Array, labels: Labels, joint: Array) -> Array:
    """P(y | x, given) of every example under the channel of a joint, [n, C]."""
    prior = normalised(joint.sum(0, keepdims=True))[0]
    channel = joint.T + SMALLEST * prior[:, None] / len(prior)
    channel /= channel.sum(1, keepdims=True)
    found = np.empty(probabilities.shape)
    some = max(1, ROWS_AT_ONCE // probabilities.shape[1])
    for start in range(0, len(probabilities), some):
        rows = slice(start, start + some)
        p = normalised(probabilities[rows])
        q = np.tile(prior, (len(p), 1))
        for _ in range(STEPS):
            q *= (p / np.maximum(q @ channel, 1e-12)) @ channel.T
            q /= q.sum(1, keepdims=True)
        found[rows] = q
    found *= channel[:, labels].T
    found /= np.maximum(found.sum(1, keepdims=True), 1e-300)
    return found
