"""Web-scale data sets: a list of files with a label each, read once into an array on disk.

Every file is opened and decoded once, brought to one size and written out; at no time are more than a few dozen images
in memory. The array is kept, and mapped again by the next call if names, labels, sizes and times of change of all files
are still the same. Files that cannot be read are left out and reported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.images import Collection, Pixels, Skipped, prepare
from sgoif.images.backends import Files, Store
from sgoif.images.pixels import PIXELS
from sgoif.images.text import few, plural
from sgoif_bench.labels.datasets.labelled import UNKNOWN, Ask, LabelledData, Labels

SIZE = 64
CACHE = "sgoif-cache"
TELL_FROM, STEPS = 5000, 20
LOOKED_FOR = 100


@dataclass
class Listing:
    """Files below a folder with a label each; the name of a file is its path below the folder."""

    folder: Path
    classes: tuple[str, ...]
    names: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    clean: list[int] | None = None
    """As `LabelledData.clean_labels`."""
    store: Store | None = None
    """Where the files lie; None: at their names below the folder."""
    skipped: list[Skipped] = field(default_factory=list)

    def add(self, name: str, label: int, clean: int = UNKNOWN) -> None:
        """One more file. A path that leads out of the folder is not followed: lists come from elsewhere."""
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            self.skipped.append(Skipped(name, f"leads out of {self.folder}"))
            return
        self.names.append(name)
        self.labels.append(label)
        if self.clean is not None:
            self.clean.append(clean)


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a list that are not empty, with their numbers."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, start=1):
            if text := line.strip():
                yield number, text


def pairs_of(path: Path, classes: int) -> Iterator[tuple[str, int]]:
    """The lines "name label" of a list."""
    for number, line in lines_of(path):
        name, _, label = line.rpartition(" ")
        if not name.strip() or not label.isdigit() or int(label) >= classes:
            raise SettingError(
                f"{path}, line {number}: {line[:80]!r} is not a file and a class from 0 to {classes - 1}"
            )
        yield name.strip(), int(label)


def load_listing(ask: Ask, listing: Listing) -> LabelledData:
    """The images of a list, mapped from disk."""
    wanted = _once(listing)
    rows = wanted[ask.rows(len(wanted))]
    collection = _collection(ask, listing, rows)
    _check_presence(ask, collection)
    size = SIZE if ask.size is None else ask.size
    folder = _cache(ask, size)
    pixels = prepare(collection, folder, size=size, progress=_progress(ask))
    skipped = tuple(entry for entry in pixels.skipped if entry.name not in set(listing.classes))
    _report(ask, skipped)
    kept = rows[_positions(collection.names, pixels.names)]
    return LabelledData(
        ask.name,
        _mapped(folder, pixels),
        np.asarray(listing.labels, dtype=np.int64)[kept],
        listing.classes,
        kept,
        ask.train,
        clean_labels=None if listing.clean is None else np.asarray(listing.clean, dtype=np.int64)[kept],
        skipped=skipped,
    )


def _collection(ask: Ask, listing: Listing, rows: Labels) -> Collection:
    names = [listing.names[row] for row in rows]
    whole = listing.store
    return Collection(
        names=names,
        labels=np.asarray(listing.labels, dtype=np.int64)[rows],
        class_names=list(listing.classes),
        layout=ask.name,
        source=listing.folder,
        store=Files([os.path.join(listing.folder, name) for name in names])
        if whole is None
        else whole.pick(rows.tolist()),
        root=listing.folder,
        split=ask.split,
        skipped=listing.skipped,
    )


def _check_presence(ask: Ask, collection: Collection) -> None:
    """Lists without images are an incomplete root, and said to be one before anything else goes wrong."""
    if len(collection) == 0:
        raise SettingError(f"{ask.name} ({ask.split}): the lists in {collection.source} name no image")
    some = np.linspace(0, len(collection) - 1, min(len(collection), LOOKED_FOR)).round().astype(int).tolist()
    if not any(file is not None and file.is_file() for file in map(collection.file, some)):
        raise SettingError(
            f"{ask.name} ({ask.split}): none of the listed images is there, for instance "
            f"{collection.file(0)}; unpack the images below {collection.source}"
        )


def _once(listing: Listing) -> Labels:
    """Positions in the list without files that are listed again: no file is read twice."""
    seen: set[str] = set()
    first: list[int] = []
    for number, name in enumerate(listing.names):
        if name in seen:
            listing.skipped.append(Skipped(name, "listed again; the first entry counts"))
        else:
            seen.add(name)
            first.append(number)
    return np.asarray(first, dtype=np.int64)


def _cache(ask: Ask, size: int) -> Path:
    parent = ask.root / CACHE if ask.cache is None else ask.cache
    some = "" if ask.limit is None else f"-{ask.limit}-images"
    return parent / f"{ask.name}-{ask.split}-{size}{some}"


def _positions(names: Iterable[str], kept: Iterable[str]) -> list[int]:
    position = {name: number for number, name in enumerate(names)}
    return [position[name] for name in kept]


def _mapped(folder: Path, pixels: Pixels) -> Tensor:
    """The array as a tensor with three channels. Mapped so that it may be written to, as torch wants, but never is."""
    images = torch.from_numpy(np.load(folder / PIXELS, mmap_mode="c", allow_pickle=False))
    return images if pixels.channels == 3 else images.expand(-1, 3, -1, -1)


def _progress(ask: Ask) -> Callable[[int, int], None]:
    told = 0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if total >= TELL_FROM and done * STEPS // total > told:
            told = done * STEPS // total
            ask.tell(f"{ask.name}: {done:,} of {total:,} images read")

    return progress


def _report(ask: Ask, skipped: tuple[Skipped, ...]) -> None:
    if skipped:
        ask.tell(
            f"{ask.name}: {plural(len(skipped), 'image')} of the list left out; "
            + few((f"{entry.name}: {entry.reason}" for entry in skipped), 3)
        )
