"""What the checks of an audit look at: the images whose labels are judged, and those of the other splits beside them.

Labels are judged on one split alone, as features are computed for it alone. Files and pictures are looked at in all of
them, since copies in two splits are what makes a test worthless. The others are prepared in a folder of their own, so
what is judged is the same as without them.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sgoif.audit.progress import Progress
from sgoif.audit.settings import AuditSettings
from sgoif.core.score_table import ScoreTable
from sgoif.core.types import Array
from sgoif.errors import SgoifError
from sgoif.findings.check import Examined
from sgoif.findings.same_pictures import exact_copies
from sgoif.images import Collection, Pixels, open_images, prepare
from sgoif.images.mapped import Mapped
from sgoif.images.measurements import Measurements
from sgoif.images.near_duplicates import find_near_duplicates
from sgoif.images.sources import LAYOUTS
from sgoif.images.text import few
from sgoif.tasks import LabelFindings

FOLDER = "cache-splits"


class Others(NamedTuple):
    """Images of the splits whose labels are not judged."""

    pixels: Pixels
    splits: list[str]
    """The split of each."""


def examined(pixels: Pixels, found: LabelFindings, verdicts: ScoreTable, features: Array | None) -> Examined:
    """The images whose labels were judged; `verdicts` is the table of what was found as people get it."""
    return Examined(
        names=pixels.names,
        labels=pixels.labels,
        class_names=pixels.class_names,
        measured=pixels.measurements(),
        near_copies=[group.indices for group in pixels.near_duplicates],
        unreadable=pixels.skipped,
        features=features,
        labels_found=found,
        judged=found.table()["index"],
        verdicts=verdicts,
    )


def other_splits(
    settings: AuditSettings, collection: Collection, size: int, cache: Path, show: Progress
) -> tuple[Others | None, list[str]]:
    """The images of the other splits, if there are any in files, and what a person should know about them."""
    if collection.split is None or "every_split" not in LAYOUTS[collection.layout].options:
        return None, []
    try:
        every = open_images(settings.path, **{**settings.options, "limit": None}, every_split=True)
        rows = [row for row, split in enumerate(every.splits or ()) if split != collection.split]
        if settings.limit is not None and settings.limit < len(rows):
            rows = [rows[at] for at in np.linspace(0, len(rows) - 1, settings.limit).round().astype(int)]
        if not rows:
            return None, []
        others = every.pick(rows)
        show.stage("reading images of other splits", len(rows))
        pixels = prepare(others, cache, size=size, labelled=False, progress=show.advance)
    except SgoifError as error:
        return None, [f"the other splits could not be looked at, so leaks were not looked for: {error}"]
    of = dict(zip(others.names, others.splits or (), strict=True))
    splits = [of[name] for name in pixels.names]
    return Others(pixels, splits), [f"of {few(dict.fromkeys(splits))} files and pictures are looked at, labels are not"]


def with_others(judged: Examined, pixels: Pixels, split: str, others: Others) -> Examined:
    """All images, those that were judged first, without what is known of these alone."""
    beside = others.pixels
    class_names = list(dict.fromkeys([*judged.class_names, *beside.class_names]))
    number = {name: place for place, name in enumerate(class_names)}
    renumbered = np.asarray([*(number[name] for name in beside.class_names), -1], dtype=np.int64)  # −1: no label
    measured = _joined(judged.measured, beside.measurements())
    further = {row for group in exact_copies(measured) for row in group[1:]}
    rows = [row for row in range(len(measured)) if row not in further]
    images: Any = _Stack([Mapped(pixels.array), Mapped(beside.array)])  # read as one array is
    skipped = {(entry.name, entry.reason): entry for entry in (*judged.unreadable, *beside.skipped)}
    return replace(
        judged,
        names=[*judged.names, *beside.names],
        labels=np.concatenate([judged.labels, renumbered[beside.labels]]),
        class_names=class_names,
        measured=measured,
        splits=[*(split for _ in judged.names), *others.splits],
        near_copies=find_near_duplicates(images, rows),
        unreadable=list(skipped.values()),
        features=None,
        labels_found=None,
        judged=np.zeros(0, dtype=np.int64),
        verdicts=None,
    )


def _joined(first: Measurements, second: Measurements) -> Measurements:
    columns: dict[str, Any] = {
        field.name: np.concatenate([getattr(first, field.name), getattr(second, field.name)])
        for field in fields(Measurements)
    }
    return Measurements(**columns)


class _Stack:
    """Images of several arrays, one after the other and read from disk when asked for; grey ones become colour."""

    def __init__(self, arrays: Sequence[Mapped]) -> None:
        self._arrays = arrays
        self._starts = np.cumsum([0, *map(len, arrays)])
        channels = max(array.shape[1] for array in arrays)
        self.shape: tuple[int, ...] = (int(self._starts[-1]), channels, *arrays[0].shape[2:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        wanted = np.atleast_1d(rows)
        found = np.empty((len(wanted), *self.shape[1:]), dtype=np.uint8)
        part = np.searchsorted(self._starts, wanted, side="right") - 1
        for number, array in enumerate(self._arrays):
            here = part == number
            found[here] = array[wanted[here] - self._starts[number]]
        return found if np.ndim(rows) else found[0]
