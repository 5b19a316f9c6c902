"""Whether labels are wrong where classes look alike, as people's are.

Errors made at random, or by a rule that knows nothing of the images, are as many among clear images as among unclear
ones. People are wrong about what looks alike, and then most often where an image is unclear: there the model is of
their opinion, and decoys, joint and channel miss such labels. Two tables of pairs of classes tell the kinds apart:

    S[y, j]   how often an example of class y, rightly labelled as it seems, is taken for j with some probability
    D[y, j]   how often one of the surest errors is a y that was given the label j

S is what looks alike to the model, after the channel was inverted, and D is the noise. Where the rows of both are
correlated, the noise follows the looks. Flips of every class to one other are left out: there the structure of the
noise is plain, and clear images are as often wrong as others.
"""

from __future__ import annotations

import numpy as np

from sgoif.tasks.labels.channel import SMALLEST, Array, Labels, beliefs
from sgoif.tasks.labels.evidence import Rows
from sgoif.tasks.labels.fusion import ramp

POSSIBLE = 0.1
"""Probability from which an example counts as one that could be taken for another class."""
ENOUGH, LEAST_ERRORS = 20_000, 50
"""Examples that are looked at for S, and the fewest for D."""
APART, ALIKE = 0.35, 0.48
"""Correlation up to which noise has nothing to do with looks, and from which it follows them."""
FREE, RULED = 0.2, 0.3
"""Structure of the noise up to which it may follow looks, and from which it follows a rule."""


def lookalike(probabilities: Rows, given: Labels, suspicion: Array, joint: Array, rate: float) -> float:
    """Correlation of S and D, −1 to 1; the surest errors are half of what a noise rate says."""
    classes = len(joint)

    def believed_of(rows: Labels) -> Array:
        return beliefs(probabilities.take(rows).dense(classes, SMALLEST), joint)

    some = np.arange(0, len(given), max(1, len(given) // ENOUGH))
    believed = believed_of(some)
    likeliest = believed.argmax(1)
    right = likeliest == given[some]
    alike, noise = np.zeros((classes, classes)), np.zeros((classes, classes))
    for y in range(classes):
        own = right & (likeliest == y)
        alike[y] = (believed[own] > POSSIBLE).mean(0) if own.any() else 0.0
    alike = alike + alike.T
    errors = np.argsort(-suspicion, kind="stable")[: max(int(rate / 2 * len(given)), LEAST_ERRORS)]
    others = believed_of(errors)
    others[np.arange(len(errors)), given[errors]] = -1.0
    np.add.at(noise, (others.argmax(1), given[errors]), 1.0)
    apart = ~np.eye(classes, dtype=bool)
    looks, wrong = (np.sqrt(_shares(table * apart)[apart]) for table in (alike, noise))
    return float(np.corrcoef(looks, wrong)[0, 1]) if looks.std() > 0 and wrong.std() > 0 else 0.0


def follows_looks(correlation: float, structure: float, fitted: float) -> float:
    """0 to 1: whether the noise is of the kind that people make; a model that has memorised it cannot tell."""
    return ramp(correlation, APART, ALIKE) * (1 - ramp(structure, FREE, RULED)) * fitted


def _shares(table: Array) -> Array:
    out: Array = table / np.maximum(table.sum(1, keepdims=True), 1e-12)
    return out
