"""What the report page shows: one table of examples and the figures around it, checked when made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sgoif.core.score_table import ScoreTable
from sgoif.core.types import Array, Indices
from sgoif.errors import SettingError
from sgoif.findings import Finding
from sgoif.tasks.review import RankedReview


class Pairs(NamedTuple):
    """A matrix of classes by its entries; one that is there more than once counts as their sum."""

    given: Indices
    true: Indices
    number: Array


class FurtherImage(NamedTuple):
    """An image that findings are about and the table is not, such as one of another split."""

    name: str
    label: str | None = None
    """Name of its class, which may be none of those of the page; None: it has none."""
    decidable: bool = False
    """Whether it is one of the data, so that there is something to decide."""


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
    """JPEG, PNG, WebP or GIF bytes of a row; rows after those of the table are the further images. None where there
    are no pictures."""
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
    findings: Sequence[Finding] = ()
    titles: Mapping[str, str] = field(default_factory=dict)
    """Every kind that there is, in the order of the page, with its title; nothing: the page shows labels alone."""
    not_looked: Mapping[str, str] = field(default_factory=dict)
    """Kinds that were not looked for, and why."""
    further: Sequence[FurtherImage] = ()
    splits: Sequence[str] = ()
    """Splits that images can be moved to; names then begin with the split."""

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
        known = {*self.names, *(image.name for image in self.further)}
        for finding in self.findings:
            if unknown := next((name for name in finding.images if name not in known), None):
                raise SettingError(
                    f"a finding of the kind {finding.kind!r} is about {unknown!r}, which the page does not have;"
                    " expected is one of `names` or `further`"
                )
