"""A check: what looks for one kind of finding. The next one is written like this:

    class Dark(Check):
        '''Images in which hardly anything can be seen.'''

        kind = "dark"
        title = "Dark images"

        def find(self, seen: Examined) -> list[Finding]:
            rows = np.flatnonzero(seen.measured.brightest < LIMIT)
            return [self.finding(seen, [row], "the image is almost black", ...) for row in rows]

and listed in `sgoif.findings.checks`. A check looks at what was measured of every image, opens no file, and states its
limit in `evidence`. What it cannot judge, for want of features or labels, it leaves out by `needs`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from sgoif.core.score_table import ScoreTable
from sgoif.core.types import Array
from sgoif.findings.finding import Finding, Severity
from sgoif.findings.same_pictures import exact_copies, near_copies
from sgoif.images.collection import Skipped
from sgoif.images.measurements import Measurements
from sgoif.tasks.labels.findings import LabelFindings


@dataclass(frozen=True)
class Examined:
    """Everything that checks look at; rows of all fields agree."""

    names: Sequence[str]
    """Of every readable image, unique."""
    labels: Array
    """int64 [n], positions in `class_names`; −1 without a label."""
    class_names: Sequence[str]
    measured: Measurements
    splits: Sequence[str] = ()
    """The split of each image (train, val, ...); none: there are no splits."""
    near_copies: Sequence[Sequence[int]] = ()
    """Groups of rows that are nearly the same picture; of exact copies one stands for all."""
    unreadable: Sequence[Skipped] = ()
    features: Array | None = None
    """Of a pretrained network, float [n, d]; None: there is none."""
    labels_found: LabelFindings | None = None
    """What was found about the labels; None: nothing was judged."""
    judged: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Row of each example of `labels_found`."""
    verdicts: ScoreTable | None = None
    """`labels_found.table()` as it is given to people, such as without classes too small to judge; None: as it is."""

    @cached_property
    def same_pixels(self) -> list[list[int]]:
        """Groups of rows with the same pixels."""
        return exact_copies(self.measured)

    @cached_property
    def same_picture(self) -> list[list[int]]:
        """Groups of rows that are nearly the same picture, with the exact copies of each."""
        return near_copies(self.measured, self.near_copies, self.same_pixels)


class Check(ABC):
    """Looks for one kind of finding."""

    kind: ClassVar[str]
    """A word for tables and files, never changed."""
    title: ClassVar[str]
    """For people, in the plural."""
    severity: ClassVar[Severity] = Severity.WARNING
    """Where `finding` is given none."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Of `features`, `labels`, `splits`, `labels_found` what there must be for it to look at all."""

    @abstractmethod
    def find(self, seen: Examined) -> list[Finding]:
        """All findings of this kind, the gravest first."""

    def finding(
        self,
        seen: Examined,
        rows: Iterable[int],
        message: str,
        advice: str = "",
        *,
        evidence: Mapping[str, float | int | str | bool | None] | None = None,
        classes: Sequence[int] = (),
        severity: Severity | None = None,
        keep: int | None = None,
        about: str = "",
    ) -> Finding:
        """A finding about these rows and classes."""
        return Finding(
            self.kind,
            severity or self.severity,
            message,
            tuple(seen.names[int(row)] for row in rows),
            tuple(seen.class_names[int(number)] for number in classes),
            dict(evidence or {}),
            advice,
            None if keep is None else seen.names[keep],
            about,
        )
