"""Flips that look only at the label: to any other class, or to the class it is taken for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from sgoif.commands.demo.digits import flip_labels
from sgoif.errors import SettingError
from sgoif_bench.noise.labels import NoisyLabels, check_classes, checked_labels, checked_share

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_CIFAR10_CONFUSIONS = {"truck": "automobile", "bird": "airplane", "deer": "horse", "cat": "dog", "dog": "cat"}
CIFAR10_FLIPS: Mapping[int, int] = {
    CIFAR10_CLASSES.index(true): CIFAR10_CLASSES.index(given) for true, given in _CIFAR10_CONFUSIONS.items()
}
"""The usual class-dependent flips: truck→automobile, bird→airplane, deer→horse, cat↔dog. Half of all classes flip, so
20% wrong labels overall are 40% in these classes."""


def symmetric(labels: ArrayLike, classes: int, rate: float, seed: int = 0) -> NoisyLabels:
    """Give `rate` of all labels another class, every other class being equally likely."""
    checked_share(rate, "rate")
    given = checked_labels(labels)
    check_classes(given, classes)
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
    checked_share(rate if rate is not None else overall, "rate" if rate is not None else "overall")
    given = checked_labels(labels)
    if any(true == other for true, other in mapping.items()):
        raise SettingError("mapping sends a class to itself: such a flip would leave the label right")
    candidates = np.flatnonzero(np.isin(given, list(mapping)))
    flips = round(rate * len(candidates)) if rate is not None else round((overall or 0.0) * len(given))
    if flips > len(candidates):
        raise SettingError(
            f"overall = {overall} asks for {flips} wrong labels, but only {len(candidates)} examples belong to the "
            "mapped classes; lower it or map more classes"
        )
    return NoisyLabels(*flip_labels(given, mapping, flips, seed))


def next_class(classes: int) -> dict[int, int]:
    """The generic class-dependent mapping c → c + 1, the last class going to the first."""
    if classes < 2:
        raise SettingError(f"classes = {classes}: a flip needs at least two classes")
    return {label: (label + 1) % classes for label in range(classes)}


def next_in_superclass(superclasses: Sequence[int]) -> dict[int, int]:
    """Every class to the next one of the same superclass, the last to the first; a class on its own is not flipped.

    `superclasses[c]` is the superclass of class c.
    """
    families: dict[int, list[int]] = {}
    for label, superclass in enumerate(superclasses):
        families.setdefault(int(superclass), []).append(label)
    return {
        label: family[(place + 1) % len(family)]
        for family in families.values()
        if len(family) > 1
        for place, label in enumerate(family)
    }


def within_superclass(labels: ArrayLike, superclasses: Sequence[int], rate: float, seed: int = 0) -> NoisyLabels:
    """Flip `rate` of all labels to the next class of their superclass: CIFAR-100's usual class-dependent noise."""
    given = checked_labels(labels)
    if given.max() >= len(superclasses):
        raise SettingError(f"{len(superclasses)} superclass entries do not fit labels that go up to {given.max()}")
    return class_dependent(given, next_in_superclass(superclasses), seed=seed, overall=rate)
