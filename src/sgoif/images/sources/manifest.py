"""A table that lists image files and their labels: CSV, TSV or Parquet.

Paths are relative to `root`, the folder of the table unless told otherwise. A path that leads out of it is not
followed: a table from elsewhere must not reach files its reader did not mean to give.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sgoif.core.score_table import from_cell, is_own
from sgoif.images.backends import Files
from sgoif.images.classes import class_text
from sgoif.images.collection import Skipped
from sgoif.images.errors import ImagesError
from sgoif.images.sources.base import Found, Request, check_rows, choose_split, pyarrow_for
from sgoif.images.sources.csv_table import read_csv
from sgoif.images.text import as_unicode, few, plural, shown

IMAGE_COLUMNS = ("path", "file", "filename", "image", "image_path", "file_name", "filepath", "file_path", "img")
LABEL_COLUMNS = ("label", "class", "target", "category", "given_label", "label_name", "class_name")
SPLIT_COLUMN = "split"
CSV, PARQUET = (".csv", ".tsv"), (".parquet", ".pq")


def matches(path: Path) -> bool:
    """A table by its suffix."""
    return path.is_file() and path.suffix.lower() in CSV + PARQUET


def read(request: Request) -> Found:
    """One image per row whose file lies below the root and which, unless labels do not matter, has a label."""
    root = Path(os.path.abspath(request.path.parent if request.root is None else request.root))
    if not root.is_dir():
        raise ImagesError(
            f"the root {shown(root)} is not a folder; give the one that the paths in the table start from"
        )
    image_column, label_column, columns = _columns(request)
    named = None if label_column is None else (image_column, label_column)
    found = Found([], [], Files([]), root=root, split=request.split, columns=named, rows=[])
    finder = Finder(root)
    labels: list[str | None] = []
    paths: list[str] = []
    taken: set[str] = set()
    assert found.rows is not None
    splits = [None if split is None else str(split).strip() for split in columns.get(SPLIT_COLUMN, ())]
    found.notes += _split_notes(request, splits)
    spaced: list[str] = []
    images = columns[image_column]
    given_labels = [None] * len(images) if label_column is None else columns[label_column]
    for row, (path, label) in enumerate(zip(images, given_labels, strict=True)):
        if request.split is not None and splits[row] != request.split:
            continue
        line = row + 2
        text, given = class_text(path), class_text(label)
        name = f"row {line}" if text is None else as_unicode(text)
        reason: str | None = None
        if text is None:
            reason = "the row names no file"
        elif given is None and request.labelled:
            reason = "the row has no label"
        else:
            file, reason = finder.file(text)
        if reason is not None:
            found.skipped.append(Skipped(name, f"{reason} (row {line})"))
            continue
        name = as_unicode(finder.below(file)).replace(os.sep, "/")
        if name in taken:
            # The same file under another label is a mistake worth finding, so both rows stay.
            name = f"{name}#row{line}"
        taken.add(name)
        found.names.append(name)
        paths.append(file)
        if given is not None and given != given.strip():
            spaced.append(given)
            given = given.strip()
        labels.append(given)
        found.rows.append(row)
    found.labels, found.store = labels, Files(paths)
    if spaced:
        found.notes.append(f"spaces around {plural(len(spaced), 'label')} do not count: {few(dict.fromkeys(spaced))}")
    if not paths and found.skipped:
        first = found.skipped[0]
        raise ImagesError(
            f"none of the {len(found.skipped)} rows of {shown(request.path)} leads to an image; the first:"
            f" {shown(first.name)}: {first.reason}"
        )
    return found


def _split_notes(request: Request, splits: Sequence[str | None]) -> list[str]:
    """Raises where the table has no such split; what to say where it has several and none was chosen."""
    named = list(dict.fromkeys(split for split in splits if split))
    if request.split is not None:
        choose_split(request.path, request.split, named)
        return []
    return [f"all splits are read: {few(named)} (choose one with --split)"] if len(named) > 1 else []


class Finder:
    """Files below a root by what the cells of a table say. Where a folder really lies is looked up once."""

    def __init__(self, root: Path) -> None:
        self._root, self._real_root = str(root), os.path.realpath(root)
        self._start, self._real_start = os.path.join(self._root, ""), os.path.join(self._real_root, "")
        self._folders: dict[str, str] = {}

    def file(self, text: str) -> tuple[str, str | None]:
        """The file a cell names, or the reason why it cannot be taken."""
        file = os.path.normpath(os.path.join(self._root, text))
        if text != (bare := text.strip()) and not os.path.exists(file):
            text = bare
            file = os.path.normpath(os.path.join(self._root, text))
        if "\\" in text and os.sep == "/" and not os.path.exists(file):
            file = os.path.normpath(os.path.join(self._root, text.replace("\\", "/")))
        try:
            real, mode = self._real(file)
            if not real.startswith(self._real_start) and real != self._real_root:
                return file, f"lies outside {shown(self._root)}; if that is meant, give a --root that holds it"
            if not stat.S_ISREG(os.stat(real).st_mode if mode is None else mode):
                return file, "not a file"
        except FileNotFoundError:
            return file, f"no such file below {shown(self._root)}; if paths start elsewhere, give --root"
        except (OSError, ValueError) as error:
            return file, f"cannot be read: {getattr(error, 'strerror', None) or error}"
        if not file.startswith(self._start):
            # Reached by another way round, such as an absolute path through a link: named as if it had come straight.
            file = os.path.join(self._root, os.path.relpath(real, self._real_root))
        return file, None

    def below(self, file: str) -> str:
        """The path of a file of the root, seen from there."""
        return file[len(self._start) :] if file.startswith(self._start) else os.path.relpath(file, self._root)

    def _real(self, file: str) -> tuple[str, int | None]:
        """A path with its links followed and, where it is known by then, what kind of file that is."""
        folder, _, name = file.rpartition(os.sep)
        start = self._folders.get(folder)
        if start is None:
            start = self._folders[folder] = os.path.join(os.path.realpath(os.path.dirname(file)), "")
        real = start + name
        try:
            mode = os.lstat(real).st_mode
        except OSError:
            return os.path.realpath(file), None
        return (os.path.realpath(real), None) if stat.S_ISLNK(mode) else (real, mode)


def _columns(request: Request) -> tuple[str, str | None, dict[str, Sequence[Any]]]:
    """The names of the columns of images and labels, and the cells of these and of the split."""
    path = request.path
    if path.suffix.lower() in PARQUET:
        pyarrow = pyarrow_for("Reading a Parquet manifest")
        try:
            header = pyarrow.parquet.read_schema(path).names
            image, label = _choose(header, request)
            wanted = [
                name for name in dict.fromkeys((image, label, SPLIT_COLUMN)) if name is not None and name in header
            ]
            check_rows(path, pyarrow.parquet.read_metadata(path))
            table = pyarrow.parquet.read_table(path, columns=wanted)
            return image, label, {name: table.column(name).to_pylist() for name in wanted}
        except ImagesError:
            raise
        except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
            raise ImagesError(f"{shown(path)} is not a readable Parquet file: {error}") from error
    asked = [name for name in (request.image_column, request.label_column) if name]
    table = read_csv(path, (*asked, *IMAGE_COLUMNS, *LABEL_COLUMNS))
    image, label = _choose(table.header, request)
    names = [name for name in (image, label, SPLIT_COLUMN) if name is not None and name in table.header]
    positions = {name: table.column(name) for name in names}
    read = from_cell if is_own(table.header) else str  # an apostrophe in a table of somebody else is part of the text
    cells: dict[str, Sequence[Any]] = {
        name: [read(row[position]) if position < len(row) else None for row in table.rows]
        for name, position in positions.items()
    }
    return image, label, cells


def _choose(header: Sequence[str], request: Request) -> tuple[str, str | None]:
    if request.split is not None and SPLIT_COLUMN not in header:
        raise ImagesError(f"{shown(request.path)} has no column 'split'; its columns are {few(header, 20)}")
    image = find_column(header, request.image_column, IMAGE_COLUMNS, "images", "--image-column", request.path)
    if not request.labelled and request.label_column is None:
        return image, None
    label = find_column(header, request.label_column, LABEL_COLUMNS, "labels", "--label-column", request.path)
    if image == label:
        raise ImagesError(f"images and labels cannot both come from the column {shown(image)}; name another one")
    return image, label


def find_column(
    header: Sequence[str], asked: str | None, guesses: Sequence[str], what: str, option: str, path: Path
) -> str:
    """The column that was asked for, or the first that goes by a usual name."""
    if asked is not None:
        if asked in header:
            return asked
        raise ImagesError(f"{shown(path)} has no column {shown(asked)}; its columns are {few(header, 20)}")
    by_lower = {name.lower(): name for name in reversed(header)}
    for guess in guesses:
        if guess in by_lower:
            return by_lower[guess]
    raise ImagesError(
        f"no column of {shown(path)} is known to hold the {what}: its columns are {few(header, 20)}, looked for were"
        f" {', '.join(guesses)}. Name it with {option}"
    )
