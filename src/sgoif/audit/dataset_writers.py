"""Cleaned copies of data in the layouts that images come in. Everything goes below one new folder.

`labels` is the new label of every image, DROPPED where it goes. Writers return what was written in words.
"""

import csv
import errno
import io
import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from sgoif.audit.decisions import DROPPED
from sgoif.core.score_table import is_own, to_cell
from sgoif.core.types import Array
from sgoif.images.backends import Arrays, Encoded
from sgoif.images.collection import Collection
from sgoif.images.decode import SUFFIXES
from sgoif.images.reading import each_image
from sgoif.images.sources.base import Request, pyarrow_for
from sgoif.images.sources.csv_table import read_csv
from sgoif.images.sources.manifest import PARQUET

ARCHIVE = "clean.npz"
LONGEST_NAME = 255
"""Bytes of one part of a path, on every usual file system."""


class Places:
    """Paths given out so far, relative to the new folder."""

    def __init__(self) -> None:
        self._files: set[Path] = set()
        self._folders: set[Path] = set()

    def take(self, wanted: Path) -> Path:
        """The wanted path, or with a number added where it is taken; a file never lies where a folder does."""
        if any(parent in self._files for parent in wanted.parents):
            wanted = Path(wanted.parts[0], "-".join(wanted.parts[1:]))
        place, number = wanted, 2
        while place in self._files or place in self._folders:
            place = wanted.with_name(_numbered(wanted, number))
            number += 1
        self._files.add(place)
        self._folders.update(place.parents)
        return place

    def folder(self, wanted: str) -> str:
        """A folder of its own at the top."""
        name, number = wanted, 2
        while Path(name) in self._folders:
            name = _numbered(Path(wanted), number)
            number += 1
        self._folders.add(Path(name))
        return name


def safe_name(text: str) -> str:
    """Any text as one part of a path: no separators or control characters, not hidden, not too long."""
    kept = "".join(c if c.isprintable() and c not in '/\\:*?"<>|' else "_" for c in text).strip(". ")
    return _shortened(kept, LONGEST_NAME - 32) or "_"


def _numbered(path: Path, number: int) -> str:
    ending = f"_{number}{path.suffix}"
    return _shortened(path.stem, LONGEST_NAME - len(os.fsencode(ending))) + ending


def _shortened(text: str, most: int) -> str:
    """Cut at the end to a number of bytes, between characters."""
    while len(os.fsencode(text)) > most:
        text = text[:-1]
    return text


@dataclass
class Cleaning:
    """A copy to be made, and what is learnt while it is made."""

    collection: Collection
    request: Request
    """How it was opened."""
    labels: Array
    links: bool = False
    """Whether files may share their contents with the original, so that an edit of one changes the other."""
    splits: list[str] | None = None
    """The new split of every image, where there are splits."""
    ways: Counter[str] = field(default_factory=Counter)
    """How many files were copied, linked, symlinked or renamed."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """Images that could not be taken over, and why."""
    sizes: set[tuple[int, int]] = field(default_factory=set)
    colour: bool = False
    """Whether any of the images is in colour."""
    carried: set[str] = field(default_factory=set)
    """Names of images in the copy, with all that was skipped of what is drawn on them."""
    notes: list[str] = field(default_factory=list)
    """What a person should know of the copy."""

    @property
    def remaining(self) -> list[int]:
        """Images that are neither dropped nor unreadable."""
        return [int(number) for number in np.flatnonzero(self.labels != DROPPED) if int(number) not in self.unreadable]

    def look(self, advance: Callable[[int, int], None]) -> None:
        """Decode all that would be copied, as an audit does: what it could not judge does not belong in the copy."""
        numbers = self.remaining
        with closing(each_image(self.collection.store.pick(numbers), lambda image: (image.size, image.mode))) as stream:
            for done, (number, seen) in enumerate(zip(numbers, stream, strict=True), start=1):
                if isinstance(seen, str):
                    self.unreadable[number] = seen
                else:
                    self.sizes.add(seen[0])
                    self.colour = self.colour or seen[1] == "RGB"
                if done % 16 == 0 or done == len(numbers):
                    advance(done, len(numbers))

    def bring(self, source: str, target: Path) -> None:
        """Put a file into the copy, or a link to it where that was asked for and can be had."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(target):  # a file system that does not tell upper from lower case
            raise FileExistsError(errno.EEXIST, "two names differ in case only", str(target))
        real = os.path.realpath(source)
        if self.links:
            for way, link in (("linked", os.link), ("symlinked", os.symlink)):
                with suppress(OSError, NotImplementedError):
                    if os.path.isfile(real):
                        link(real, target)
                        self.ways[way] += 1
                        return
        shutil.copy2(real, target)
        self.ways["copied"] += 1


def plan_folder(cleaning: Cleaning) -> list[tuple[str, Path]]:
    """Where every file goes: TO/<class>/<path below the class>, or TO/<split>/<class>/...

    A relabelled or moved file gives way where a name is taken.
    """
    collection = cleaning.collection
    assert collection.root is not None
    before = collection.splits if cleaning.splits is not None else None
    base = collection.root / collection.split if collection.split and before is None else collection.root
    whole = [Path(os.path.relpath(str(collection.file(number)), base)) for number in range(len(collection))]
    below = whole if before is None else [path.relative_to(path.parts[0]) for path in whole]
    # The folders' real names: those of classes and splits are what can be shown of them.
    folders = {int(label): path.parts[0] for label, path in zip(collection.labels, below, strict=True)}
    tops = {split: path.parts[0] for split, path in zip(before or [], whole, strict=before is not None)}
    places, moves = Places(), dict[int, Path]()
    remaining = cleaning.remaining
    for moved in (False, True):
        for number in remaining:
            label, wanted = int(cleaning.labels[number]), below[number]
            split = None if cleaning.splits is None else cleaning.splits[number]
            stays = label == collection.labels[number] and (before is None or split == before[number])
            if stays != moved:
                if label >= 0:
                    wanted = Path(folders[label], *wanted.parts[1:])
                wanted = wanted if split is None else tops[split] / wanted
                moves[number] = places.take(wanted)
                cleaning.ways["renamed"] += moves[number] != wanted
    return [(str(collection.file(number)), moves[number]) for number in remaining]


def write_folder(cleaning: Cleaning, target: Path | None) -> str:
    """One folder per class."""
    moves = plan_folder(cleaning)
    if target is not None:
        for source, place in moves:
            cleaning.bring(source, target / place)
    return "one folder per class" if cleaning.splits is None else "one folder per split, in each one per class"


def write_manifest(cleaning: Cleaning, target: Path | None) -> str:
    """The images below images/, and the table with all its columns."""
    collection = cleaning.collection
    parquet = collection.source.suffix.lower() in PARQUET
    name = "manifest.parquet" if parquet else "manifest.csv"
    if target is None:
        return f"images/ and {name}"
    assert collection.root is not None
    assert collection.manifest is not None
    remaining = cleaning.remaining
    paths: list[str] = []
    for number in remaining:
        source = str(collection.file(number))
        place = Path("images", os.path.relpath(source, collection.root))
        if not os.path.lexists(target / place):  # a table may list a file twice
            cleaning.bring(source, target / place)
        paths.append(place.as_posix())
    rows = [collection.manifest.rows[number] for number in remaining]
    # A new label is copied from a row that has it, so that it is written the way the table writes it.
    example = {int(label): row for label, row in zip(collection.labels, collection.manifest.rows, strict=True)}
    changed = cleaning.labels != collection.labels
    label_rows = [
        example[int(cleaning.labels[number])] if changed[number] else row
        for number, row in zip(remaining, rows, strict=True)
    ]
    write = _write_parquet if parquet else _write_csv
    write(collection, target / name, paths, rows, label_rows)
    return f"images/ and {name}"


def _write_csv(collection: Collection, target: Path, paths: list[str], rows: list[int], label_rows: list[int]) -> None:
    assert collection.manifest is not None
    table = read_csv(collection.source, (collection.manifest.image_column, collection.manifest.label_column))
    image, label = table.column(collection.manifest.image_column), table.column(collection.manifest.label_column)
    own = is_own(table.header)
    with open(target, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table.header)
        for path, row, label_row in zip(paths, rows, label_rows, strict=True):
            cells = table.rows[row] + [""] * (len(table.header) - len(table.rows[row]))
            cells[image], cells[label] = to_cell(path) if own else path, table.rows[label_row][label].strip()
            writer.writerow(cells)


def _write_parquet(
    collection: Collection, target: Path, paths: list[str], rows: list[int], label_rows: list[int]
) -> None:
    assert collection.manifest is not None
    pyarrow = pyarrow_for("Writing a Parquet manifest")
    table = pyarrow.parquet.read_table(collection.source)
    kept = table.take(rows)
    image, label = collection.manifest.image_column, collection.manifest.label_column
    kept = kept.set_column(kept.schema.get_field_index(image), image, pyarrow.array(paths, pyarrow.string()))
    labels = table.column(label).take(label_rows)
    if pyarrow.types.is_string(labels.type) or pyarrow.types.is_large_string(labels.type):
        labels = pyarrow.compute.utf8_trim_whitespace(labels)
    kept = kept.set_column(kept.schema.get_field_index(label), kept.field(label), labels)
    pyarrow.parquet.write_table(kept, target)


def write_arrays(cleaning: Cleaning, target: Path | None) -> str:
    """clean.npz with x, y, names and class_names; encoded images of different sizes become files."""
    store, mode = cleaning.collection.store, "RGB" if cleaning.colour else "L"
    if isinstance(store, Arrays):
        if target is not None:
            _write_archive(cleaning, target, store.raw)
        return ARCHIVE
    assert isinstance(store, Encoded)
    if len(cleaning.sizes) > 1:
        _write_encoded(cleaning, store, target)
        return "one folder per class, since the images differ in size"
    if target is not None:
        _write_archive(cleaning, target, lambda number: np.asarray(store.image(number).convert(mode)))
    return ARCHIVE


def _write_encoded(cleaning: Cleaning, store: Encoded, target: Path | None) -> None:
    places = Places()
    folders = [places.folder(safe_name(name)) for name in cleaning.collection.class_names]
    for number in cleaning.remaining:
        content = store.encoded(number)
        with Image.open(io.BytesIO(content)) as image:
            suffix = (image.format or "png").lower().replace("jpeg2000", "jp2").replace("jpeg", "jpg")
        name = Path(cleaning.collection.names[number])
        stem = safe_name(str(name.with_suffix("") if name.suffix.lower() in SUFFIXES else name).replace(os.sep, "-"))
        place = places.take(Path(folders[int(cleaning.labels[number])], f"{stem}.{suffix}"))
        if target is not None:
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            (target / place).write_bytes(content)
            cleaning.ways["copied"] += 1


def _write_archive(cleaning: Cleaning, target: Path, row_of: Callable[[int], Array]) -> None:
    """Row after row, so that the images, which are alike in shape and type, are never all in memory."""
    collection, numbers = cleaning.collection, cleaning.remaining
    first = row_of(numbers[0])
    parts = {
        "y": cleaning.labels[numbers].astype(np.int64),
        "names": np.array([collection.names[number] for number in numbers]),
        "class_names": np.array(collection.class_names),
    }
    with zipfile.ZipFile(target / ARCHIVE, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as entry:
            description = np.lib.format.dtype_to_descr(first.dtype)
            header = {"descr": description, "fortran_order": False, "shape": (len(numbers), *first.shape)}
            np.lib.format.write_array_header_1_0(entry, header)
            for number in numbers:
                entry.write(np.ascontiguousarray(row_of(number)).tobytes())
        for name, values in parts.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, values, allow_pickle=False)
