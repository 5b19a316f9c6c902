"""What every layout is asked and what it answers."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sgoif.core.serialization import DENSEST, LARGE
from sgoif.errors import MissingExtraError
from sgoif.images.backends import Store
from sgoif.images.collection import Skipped
from sgoif.images.errors import ImagesError
from sgoif.images.text import few, shown

TRAIN = "train"
MANY_ROWS, ROWS_PER_BYTE = 10_000_000, 10
SPLIT_NAMES = frozenset(("train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"))


@dataclass(frozen=True)
class Request:
    """A path and what the user said about it."""

    path: Path
    split: str | None = None
    root: Path | None = None
    image_column: str | None = None
    label_column: str | None = None
    labelled: bool = True
    """False: only the images are wanted. Folders, tables and archives then need no labels."""
    follow_links: bool = False
    """Links may lead out of an image folder and into other classes."""
    every_split: bool = False
    """The images of all splits are wanted, also those without a label."""


@dataclass
class Found:
    """Images of one layout, before labels become numbers."""

    names: list[str]
    labels: Sequence[Any]
    """Whatever stands for the class: text, a number, None."""
    store: Store
    root: Path | None = None
    split: str | None = None
    splits: list[str] | None = None
    """The split of each image, where all splits were read."""
    known_classes: Sequence[str] | None = None
    """Names of classes 0, 1, 2 ...: labels are then numbers. None: every distinct label is a class."""
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows: list[int] | None = None
    columns: tuple[str, str] | None = None


def listing(folder: Path) -> list[os.DirEntry[str]]:
    """Entries of a folder by name, without hidden ones."""
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise ImagesError(f"cannot look into {shown(folder)}: {error.strerror}") from error


def choose_split(path: Path, wanted: str | None, available: Sequence[str]) -> str:
    """The wanted split, or the training split, or the only one there is."""
    if wanted is not None:
        if wanted in available:
            return wanted
        raise ImagesError(f"{shown(path)} has no split {shown(wanted)}; it has {few(available)}")
    for name in (TRAIN, "training"):
        if found := [split for split in available if split.lower() == name]:
            return found[0]
    if len(available) == 1:
        return available[0]
    raise ImagesError(f"{shown(path)} has the splits {few(available)}, none called train; choose one with --split")


def split_note(split: str, available: Sequence[str]) -> list[str]:
    """What to tell a person about the splits that were not read."""
    others = [name for name in available if name != split]
    return (
        [f"reading the labels of the split {shown(split)}, not of {few(others)} (choose with --split)"]
        if others
        else []
    )


def splits_note(splits: Iterable[str]) -> str:
    """What to tell a person about all splits being read."""
    return f"reading the splits {few(dict.fromkeys(splits))}"


def refuse_split(request: Request) -> None:
    """Raise where a part of a single file is asked for."""
    if request.split is not None:
        raise ImagesError(f"{shown(request.path)} is one file without splits; leave --split away")


def numbers_as_names(split: str, count: int) -> list[str]:
    """Names for images that have none of their own."""
    return [f"{split}/{number}" for number in range(count)]


def check_rows(path: Path, metadata: Any) -> None:
    """Raise where a Parquet file claims far more rows or bytes than it has room for: equal cells pack into nothing."""
    size = os.path.getsize(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    rows, whole = sum(group.num_rows for group in groups), sum(group.total_byte_size for group in groups)
    if rows > max(MANY_ROWS, ROWS_PER_BYTE * size) or whole > max(LARGE, DENSEST * size):
        raise ImagesError(
            f"{shown(path)} has {size:,} bytes and would unpack to {rows:,} rows of {whole:,} bytes, which no such file"
            " needs; do not trust it"
        )


def pyarrow_for(purpose: str) -> Any:
    """The package pyarrow, or the error that says how to get it."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "tables", purpose) from error
    return pyarrow
