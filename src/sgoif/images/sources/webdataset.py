"""Tar files as WebDataset lays them out: KEY.jpg (or another image) beside KEY.cls or KEY.json. Nothing is unpacked.

One tar file, or a folder of them. Files whose names begin with a split, such as train-0001.tar, are of that split.
"""

import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path

from sgoif.images.backends import Encoded, Update, stamp
from sgoif.images.collection import Skipped
from sgoif.images.containment import contained_file
from sgoif.images.errors import ImagesError, UnreadableImageError
from sgoif.images.sources.base import (
    SPLIT_NAMES,
    Found,
    Request,
    choose_split,
    listing,
    refuse_split,
    split_note,
    splits_note,
)
from sgoif.images.sources.tar_samples import ConnectionLost, Place, located
from sgoif.images.text import as_unicode, shown

SUFFIX = ".tar"
SPLIT = re.compile(r"[a-z]+", re.IGNORECASE)
LOOKED_AT = 20
"""Samples at the beginning of a tar file of which one has to have a label."""


def matches(path: Path) -> bool:
    """A tar file that begins with images and labels beside them, or a folder that holds such files and no folders."""
    if path.is_dir():
        entries = listing(path)
        files = _tars(path)
        return (
            bool(files) and not any(os.path.isdir(entry.path) for entry in entries) and any(map(_holds_samples, files))
        )
    return path.suffix.lower() == SUFFIX and path.is_file() and _holds_samples(path)


def read(request: Request) -> Found:
    """Every image of every file; named by its place in the tar file, and in a folder by that file, too."""
    split, notes = None, list[str]()
    of: list[str] = []
    if request.path.is_dir():
        files, of, split, notes = _files(request)
    else:
        refuse_split(request)
        files = [request.path]
    found = Found([], [], TarMembers([], []), split=split, splits=[] if of else None, notes=notes)
    labels: list[str | None] = []
    places: list[tuple[int, Place]] = []
    for number, file in enumerate(files):
        prefix = "" if file == request.path else f"{as_unicode(file.name)}/"
        try:
            with open(contained_file(file.parent, file.name) if prefix else file, "rb") as shard:
                for key, place, label, problem in located(shard):
                    if place is None or (label is None and request.labelled and not of):
                        what = prefix + (key if place is None else place.name) if key else as_unicode(file.name)
                        found.skipped.append(Skipped(what, problem or "", damaged=not key))
                        continue
                    found.names.append(prefix + place.name)
                    labels.append(label)
                    places.append((number, place))
                    if found.splits is not None:
                        found.splits.append(of[number])
        except (OSError, ValueError) as error:  # of ValueError: links out of the folder, and connections that are lost
            reason = str(error) if not isinstance(error, OSError) else f"it cannot be read: {error.strerror}"
            found.skipped.append(Skipped(as_unicode(file.name), reason, damaged=isinstance(error, ConnectionLost)))
    found.labels, found.store = labels, TarMembers(files, places)
    return found


def _files(request: Request) -> tuple[list[Path], list[str], str | None, list[str]]:
    """The files of one split, or of all and which of them each is of, or all files where their names tell of none."""
    files = _tars(request.path)
    words = [SPLIT.match(file.name) for file in files]
    splits = [word[0].lower() if word and word[0].lower() in SPLIT_NAMES else "" for word in words]
    available = sorted(set(splits) - {""})
    if "" in splits or (len(available) < 2 and request.split is None):
        if request.split is not None:
            raise ImagesError(f"not all tar files of {shown(request.path)} are named by a split; leave --split away")
        return files, [], None, []
    split = choose_split(request.path, request.split, available)
    if request.every_split:
        return files, splits, split, [splits_note(available)]
    chosen = [file for file, own in zip(files, splits, strict=True) if own == split]
    return chosen, [], split, split_note(split, available)


def _tars(folder: Path) -> list[Path]:
    return [Path(entry.path) for entry in listing(folder) if entry.name.lower().endswith(SUFFIX)]


def _holds_samples(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return any(label is not None for _, _, label, _ in itertools.islice(located(file), LOOKED_AT))
    except (OSError, ImagesError):
        return False


class TarMembers(Encoded):
    """Images inside tar files, each fetched when it is asked for."""

    def __init__(self, files: Sequence[Path], places: Sequence[tuple[int, Place]]) -> None:
        self._files, self._places = list(files), list(places)

    def __len__(self) -> int:
        return len(self._places)

    def origin(self, number: int) -> tuple[Path, int]:
        """The tar file of an image, and where in it the image begins."""
        file, place = self._places[number]
        return self._files[file], place.start

    def encoded(self, number: int) -> bytes:
        """The image as it is stored."""
        file, place = self._places[number]
        try:
            with open(self._files[file], "rb") as shard:
                shard.seek(place.start)
                content = shard.read(place.length)
        except OSError as error:
            raise UnreadableImageError(f"the tar file cannot be read: {error.strerror}") from error
        if len(content) < place.length:
            raise UnreadableImageError("the tar file is shorter than it was")
        return content

    def fingerprint(self, update: Update) -> None:
        for file in self._files:
            update(as_unicode(file.name).encode() + b" " + stamp(file))
        for file_number, place in self._places:
            update(f"{file_number} {place.start} {place.length};".encode())

    def pick(self, numbers: Sequence[int]) -> "TarMembers":
        return TarMembers(self._files, [self._places[number] for number in numbers])
