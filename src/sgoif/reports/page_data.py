"""What the report page shows: one table of examples and the figures around it, checked when made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sgoif.errors import SettingError

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

REAL_COLUMNS = ("probability", "confidence", "influence", "interval_low", "interval_high")
WHOLE_COLUMNS = ("given", "suggested", "observations")


class Pairs(NamedTuple):
    """A matrix of many classes with few entries; one that is there more than once counts as their sum."""

    given: IntArray
    true: IntArray
    number: FloatArray


@dataclass(frozen=True)
class PageData:
    """Everything on the page. Columns have one entry per example; `nan` means that a value is not known."""

    title: str
    source: str
    """Absolute path of the audited data; goes into decisions.csv."""
    class_names: Sequence[str]
    names: Sequence[str]
    """Path or index of each example."""
    given: IntArray
    suggested: IntArray
    probability: FloatArray
    """Calibrated probability that the given label is wrong."""
    confidence: FloatArray
    influence: FloatArray
    interval_low: FloatArray
    interval_high: FloatArray
    observations: IntArray
    selected: BoolArray
    harmed: IntArray
    """[n, k] rows of the held-out examples that each example hurts most; -1 = none."""
    thumbnail: Callable[[int], bytes | None] | None
    """JPEG, PNG, WebP or GIF bytes of a row; None where there are no pictures."""
    noise_rate: tuple[float, float, float]
    """Estimate, low, high."""
    fdr: float
    precision: Sequence[tuple[int, float]]
    """Expected precision of the top k."""
    confusion: FloatArray | Pairs
    """[C, C] estimated number of examples by given (row) and true (column) class; of many classes as pairs."""
    reliability: Sequence[tuple[float, float, float, float, int]]
    """Predicted, observed, low, high and count of each bin."""
    reliability_note: str
    history: Sequence[Mapping[str, float]]
    """One entry per refresh, as in `monitor.history`."""
    facts: Mapping[str, str]
    notes: Sequence[str] = ()
    copies: Sequence[Sequence[int]] = ()
    """Rows that show the same picture, or nearly the same, group by group."""

    def __post_init__(self) -> None:
        count, classes = len(self.names), len(self.class_names)
        if count == 0:
            raise SettingError("a report needs at least one example; got none")
        if classes == 0:
            raise SettingError("a report needs at least one class name; got none")
        if len(set(self.class_names)) != classes:
            twice = next(name for name in self.class_names if list(self.class_names).count(name) > 1)
            raise SettingError(f"class names must differ; {twice!r} stands there more than once: rename one of them")
        for name in REAL_COLUMNS:
            self._set(name, np.asarray(getattr(self, name), dtype=np.float64))
        for name in WHOLE_COLUMNS:
            self._set(name, _whole(name, getattr(self, name)))
        self._set("selected", np.asarray(self.selected, dtype=np.bool_))
        for name in (*REAL_COLUMNS, *WHOLE_COLUMNS, "selected"):
            if getattr(self, name).shape != (count,):
                shape = getattr(self, name).shape
                raise SettingError(f"{name} must have one entry for each of the {count} names; its shape is {shape}")
        self._check_ranges(count, classes)
        for group in self.copies:
            if len(set(group)) != len(group) or len(group) < 2 or min(group) < 0 or max(group) >= count:
                raise SettingError(f"copies must be groups of different rows from 0 to {count - 1}; got {list(group)}")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_ranges(self, count: int, classes: int) -> None:
        for name in ("given", "suggested"):
            column = getattr(self, name)
            if column.min() < 0 or column.max() >= classes:
                span = f"{column.min()} to {column.max()}"
                raise SettingError(f"{name} must hold class numbers from 0 to {classes - 1}; it holds {span}")
        known = self.probability[~np.isnan(self.probability)]
        if known.size and (known.min() < 0 or known.max() > 1):
            raise SettingError(f"probability must lie in [0, 1]; it spans {known.min():.4g} to {known.max():.4g}")
        harmed = _whole("harmed", self.harmed)
        if harmed.ndim != 2 or harmed.shape[0] != count:
            raise SettingError(f"harmed must be [{count}, k] rows, k = 0 for none; its shape is {harmed.shape}")
        if harmed.size and (harmed.min() < -1 or harmed.max() >= count):
            span = f"{harmed.min()} to {harmed.max()}"
            raise SettingError(f"harmed must hold rows from 0 to {count - 1}, or -1 for none; it holds {span}")
        self._set("harmed", harmed)
        if not isinstance(self.confusion, Pairs):
            confusion = np.asarray(self.confusion, dtype=np.float64)
            if confusion.shape != (classes, classes):
                raise SettingError(f"confusion must be [{classes}, {classes}]; its shape is {confusion.shape}")
            self._set("confusion", confusion)
        if len(self.noise_rate) != 3:
            raise SettingError(f"noise_rate must be (estimate, low, high); got {len(self.noise_rate)} values")
        if not 0 <= self.fdr <= 1:
            raise SettingError(f"fdr must lie in [0, 1]; got {self.fdr}")


def _whole(name: str, values: Any) -> IntArray:
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iub":
        raise SettingError(f"{name} must hold whole numbers; its type is {array.dtype}")
    return array.astype(np.int64)
