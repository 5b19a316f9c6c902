"""Wrong labels, made on purpose. Every function returns the new labels and a mask of the ones that were changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import SettingError

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_CIFAR10_CONFUSIONS = {"truck": "automobile", "bird": "airplane", "deer": "horse", "cat": "dog", "dog": "cat"}
CIFAR10_FLIPS: Mapping[int, int] = {
    CIFAR10_CLASSES.index(true): CIFAR10_CLASSES.index(given) for true, given in _CIFAR10_CONFUSIONS.items()
}
"""The usual class-dependent flips: truck→automobile, bird→airplane, deer→horse, cat↔dog. Half of all classes flip, so
20% wrong labels overall are 40% in these classes."""

DIGIT_FLIPS: Mapping[int, int] = {2: 7, 3: 8, 5: 6, 6: 5, 7: 1}
"""The same for handwritten digits, between digits that look alike: 2→7, 3→8, 5↔6, 7→1."""


class NoisyLabels(NamedTuple):
    """Labels of which some are wrong, and which ones those are."""

    labels: NDArray[np.int64]
    is_wrong: NDArray[np.bool_]


def symmetric(labels: ArrayLike, classes: int, rate: float, seed: int = 0) -> NoisyLabels:
    """Give `rate` of all labels another class, every other class being equally likely."""
    given = _checked(labels, rate, "rate")
    if classes < 2 or given.max() >= classes:
        raise SettingError(f"classes = {classes} does not fit labels that go up to {given.max()}; two is the least")
    generator = np.random.default_rng(seed)
    chosen = generator.choice(len(given), size=round(rate * len(given)), replace=False)
    noisy = given.copy()
    noisy[chosen] = (given[chosen] + generator.integers(1, classes, size=len(chosen))) % classes
    return NoisyLabels(noisy, noisy != given)


def class_dependent(
    labels: ArrayLike,
    mapping: Mapping[int, int],
    rate: float | None = None,
    seed: int = 0,
    *,
    overall: float | None = None,
) -> NoisyLabels:
    """Flip labels of the classes in `mapping` to the class they are mapped to.

    `rate` is the share flipped among the examples of the mapped classes, `overall` the share flipped among all
    examples; give exactly one of them.
    """
    if (rate is None) == (overall is None):
        raise SettingError("give either rate= (share of the mapped classes) or overall= (share of all labels)")
    given = _checked(labels, rate if rate is not None else overall, "rate" if rate is not None else "overall")
    if any(true == other for true, other in mapping.items()):
        raise SettingError("mapping sends a class to itself: such a flip would leave the label right")
    candidates = np.flatnonzero(np.isin(given, list(mapping)))
    flips = round(rate * len(candidates)) if rate is not None else round((overall or 0.0) * len(given))
    if flips > len(candidates):
        raise SettingError(
            f"overall = {overall} asks for {flips} wrong labels, but only {len(candidates)} examples belong to the "
            "mapped classes; lower it or map more classes"
        )
    chosen = np.random.default_rng(seed).choice(candidates, size=flips, replace=False)
    noisy = given.copy()
    noisy[chosen] = [mapping[int(label)] for label in given[chosen]]
    return NoisyLabels(noisy, noisy != given)


def next_class(classes: int) -> dict[int, int]:
    """The generic class-dependent mapping c → c + 1, the last class going to the first."""
    if classes < 2:
        raise SettingError(f"classes = {classes}: a flip needs at least two classes")
    return {label: (label + 1) % classes for label in range(classes)}


def _checked(labels: ArrayLike, share: float | None, name: str) -> NDArray[np.int64]:
    if share is None or not 0 <= share <= 1:
        raise SettingError(f"{name} = {share} must lie in [0, 1]")
    given = np.asarray(labels)
    if given.ndim != 1 or given.size == 0 or not np.issubdtype(given.dtype, np.integer) or given.min() < 0:
        raise SettingError(
            f"labels must be a non-empty list of class numbers from 0 up, not shape {given.shape} {given.dtype}"
        )
    return given.astype(np.int64)


def by_matrix(labels: ArrayLike, matrix: ArrayLike, seed: int = 0) -> NoisyLabels:
    """Give labels away by a matrix P(given = row | true = column): as many of each class as the matrix says."""
    table = np.asarray(matrix, dtype=np.float64)
    given = _checked(labels, 0.0, "rate")
    classes = len(table)
    if table.shape != (classes, classes) or given.max() >= classes:
        raise SettingError(f"a noise matrix of shape {table.shape} does not fit labels that go up to {given.max()}")
    if table.min() < 0 or not np.allclose(table.sum(0), 1, atol=1e-6):
        raise SettingError("every column of a noise matrix must hold probabilities that sum to one")
    generator = np.random.default_rng(seed)
    noisy = given.copy()
    for true in range(classes):
        members = generator.permutation(np.flatnonzero(given == true))
        edges = np.round(np.cumsum(table[:, true]) * len(members)).astype(int)
        for row, part in enumerate(np.split(members, edges[:-1])):
            noisy[part] = row
    return NoisyLabels(noisy, noisy != given)
