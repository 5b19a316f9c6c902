"""What every kind of noise takes and returns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import SettingError


class NoisyLabels(NamedTuple):
    """Labels of which some are wrong, and which ones those are."""

    labels: NDArray[np.int64]
    is_wrong: NDArray[np.bool_]


def checked_labels(labels: ArrayLike) -> NDArray[np.int64]:
    """Class numbers as a new array; anything else is refused."""
    given = np.asarray(labels)
    if given.ndim != 1 or given.size == 0 or not np.issubdtype(given.dtype, np.integer) or given.min() < 0:
        raise SettingError(
            f"labels must be a non-empty list of class numbers from 0 up, not shape {given.shape} {given.dtype}"
        )
    return given.astype(np.int64)


def checked_share(share: float | None, name: str) -> float:
    """A share of the labels, or the error that names it."""
    if share is None or not 0 <= share <= 1:
        raise SettingError(f"{name} = {share} must lie in [0, 1]")
    return share


def check_classes(given: NDArray[np.int64], classes: int) -> None:
    """At least two classes, and no label beyond them."""
    if classes < 2 or given.max() >= classes:
        raise SettingError(f"classes = {classes} does not fit labels that go up to {given.max()}; two is the least")
