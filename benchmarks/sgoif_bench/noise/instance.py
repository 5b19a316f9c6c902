"""Noise that depends on the image: alike images of a class are mistaken for the same other class.

Part-dependent label noise as in Xia et al., "Part-dependent Label Noise" (2020). Example i of class y with features x
is flipped with its own probability

    q_i ~ Normal(rate, 0.1²), cut off to [0, 1],

and where it is, its new class is drawn from softmax(x W_y) without the class y itself, with one random matrix W_y of
standard normal numbers for every class. Features are standardised as a whole (one mean, one spread); they are not
divided by their number, so for images the softmax is close to a hard choice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sgoif.errors import SettingError
from sgoif_bench.noise.labels import NoisyLabels, check_classes, checked_labels, checked_share

SPREAD = 0.1
ROWS_AT_ONCE = 4096
STATISTICS_FROM = 10_000


def instance_dependent(
    labels: ArrayLike, features: NDArray[Any] | Tensor, classes: int, rate: float, seed: int = 0
) -> NoisyLabels:
    """Flip labels with a chance of about `rate` each, to a class that the example's features decide.

    `features` is [N, ...], for instance images, and may lie on disk: only some thousand rows are read at a time. The
    share of wrong labels is random: the flips are drawn one by one, and where [0, 1] cuts the normal distribution off
    its mean moves inwards (to 0.129 for 0.1, to 0.206 for 0.2). A rate of 0 flips nothing.
    """
    checked_share(rate, "rate")
    given = checked_labels(labels)
    check_classes(given, classes)
    rows = features.cpu().numpy() if isinstance(features, Tensor) else np.asarray(features)
    if len(rows) != len(given):
        raise SettingError(f"{len(rows)} rows of features do not go with {len(given)} labels")
    generator = np.random.default_rng(seed)
    flip_chance = _flip_chances(generator, len(given), rate)
    is_wrong = generator.random(len(given)) < flip_chance
    place = generator.random(len(given))
    mean, spread = _statistics(rows)
    noisy = given.copy()
    for label in range(classes):
        chosen = np.flatnonzero(is_wrong & (given == label))
        # Seeded by itself, and so made when it is needed: the matrices of all classes at once can be too large.
        projection = np.random.default_rng([seed, label])
        matrix = projection.standard_normal((rows[:1].size, classes), dtype=np.float32)
        for start in range(0, len(chosen), ROWS_AT_ONCE):
            part = chosen[start : start + ROWS_AT_ONCE]
            standard = (_flat(rows, part) - mean) / spread
            noisy[part] = _drawn((standard @ matrix).astype(np.float64), label, place[part])
    return NoisyLabels(noisy, noisy != given)


def _flip_chances(generator: np.random.Generator, count: int, rate: float) -> NDArray[np.float64]:
    """Normal numbers around the rate, drawn again until they are probabilities."""
    if rate == 0:
        return np.zeros(count)
    chances = generator.normal(rate, SPREAD, count)
    while len(outside := np.flatnonzero((chances < 0) | (chances > 1))):
        chances[outside] = generator.normal(rate, SPREAD, len(outside))
    return chances


def _drawn(logits: NDArray[np.float64], label: int, place: NDArray[np.float64]) -> NDArray[np.int64]:
    """One class per row from the softmax without `label`; `place` in [0, 1) decides."""
    logits[:, label] = -np.inf
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    edges = np.cumsum(weights, axis=1)
    # Strictly above: a class of weight zero is never hit, not even by a place of exactly 0.
    drawn: NDArray[np.int64] = (edges > (place * edges[:, -1])[:, None]).argmax(axis=1)
    return drawn


def _statistics(rows: NDArray[Any]) -> tuple[float, float]:
    which = np.linspace(0, len(rows) - 1, min(len(rows), STATISTICS_FROM)).round().astype(np.int64)
    sample = _flat(rows, which)
    return float(sample.mean(dtype=np.float64)), max(float(sample.std(dtype=np.float64)), 1e-12)


def _flat(rows: NDArray[Any], which: NDArray[np.int64]) -> NDArray[np.float32]:
    return rows[which].reshape(len(which), -1).astype(np.float32)
