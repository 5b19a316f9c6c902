"""What the report page shows: one table of examples and the figures around it, checked when made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sgoif.core.score_table import ScoreTable
from sgoif.core.types import Array, Indices
from sgoif.errors import SettingError
from sgoif.tasks.review import RankedReview


class Pairs(NamedTuple):
    """A matrix of classes by its entries; one that is there more than once counts as their sum."""

    given: Indices
    true: Indices
    number: Array


@dataclass(frozen=True)
class PageData:
    """Everything on the page; in a column `nan` means that a value is not known."""

    title: str
    source: str
    """Absolute path of the audited data; goes into decisions.csv."""
    class_names: Sequence[str]
    names: Sequence[str]
    """Path or index of each example."""
    table: ScoreTable
    """A row per example, with the columns of `LabelFindings.table`."""
    harmed: Indices
    """[n, k] rows of the held-out examples that each example hurts most; -1 = none."""
    thumbnail: Callable[[int], bytes | None] | None
    """JPEG, PNG, WebP or GIF bytes of a row; None where there are no pictures."""
    noise_rate: tuple[float, float, float]
    """Estimate, low, high."""
    fdr: float
    precision: Sequence[tuple[int, float]]
    """Expected precision of the top k."""
    confusion: Pairs
    """Estimated number of examples by given and true class."""
    history: Sequence[Mapping[str, float]]
    """One entry per refresh, as in `monitor.history`; nothing: no curves are shown."""
    facts: Mapping[str, str]
    notes: Sequence[str] = ()
    copies: Sequence[Sequence[int]] = ()
    """Rows that show the same picture, or nearly the same, group by group."""
    summary: str = ""
    """A line above the list; nothing where it is empty."""
    review: RankedReview | None = None
    """All rows in the order that looks are drawn from, with the plan; None: the page asks for no looks."""

    def __post_init__(self) -> None:
        if not self.names:
            raise SettingError("a report needs at least one example; got none")
        if not self.class_names:
            raise SettingError("a report needs at least one class name; got none")
        if len(set(self.class_names)) != len(self.class_names):
            twice = next(name for name in self.class_names if list(self.class_names).count(name) > 1)
            raise SettingError(f"class names must differ; {twice!r} stands there more than once: rename one of them")
        if self.review is not None and not np.array_equal(np.sort(self.review.index), np.arange(len(self.names))):
            raise SettingError(
                f"a review of {self.review.plan.size:,} rows does not fit a page of {len(self.names):,}: expected is"
                " every row once"
            )
