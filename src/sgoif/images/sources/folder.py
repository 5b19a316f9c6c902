"""A folder with one subfolder per class. Folders below a class belong to it; links are followed, loops are not."""

from __future__ import annotations

import os
from pathlib import Path

from sgoif.images.backends import Files
from sgoif.images.collection import Skipped
from sgoif.images.decode import SUFFIXES
from sgoif.images.errors import ImagesError
from sgoif.images.sources.base import SPLIT_NAMES, Found, Request, choose_split, listing, split_note
from sgoif.images.text import as_unicode, few, shown

MANIFESTS = (".csv", ".tsv", ".parquet", ".pq")
NOT_READ = frozenset(
    {".heic", ".heif", ".hif", ".jxl", ".svg", ".psd", ".xcf", ".eps", ".dcm", ".exr", ".hdr", ".dds"}
    | {".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf"}
)
"""Suffixes of pictures in formats that are not read; other files, such as notes beside images, are nobody's loss."""


def matches(path: Path) -> bool:
    """Any folder will do; this layout is tried last."""
    return path.is_dir()


def read(request: Request) -> Found:
    """Every image file below a class folder, by name."""
    if not request.labelled:
        return _read_all(request)
    base, split, notes = _base(request)
    found = Found(names=[], labels=[], store=Files([]), root=request.path, split=split, notes=notes)
    labels: list[str] = []
    paths: list[str] = []
    loose: list[str] = []
    for entry in listing(base):
        if entry.is_dir():
            files = _images_below(entry.path, found.skipped, request.path)
            if not files:
                found.skipped.append(Skipped(as_unicode(entry.name), "class left out: its folder holds no image files"))
            paths += files
            labels += [as_unicode(entry.name)] * len(files)
        elif Path(entry.name).suffix.lower() in SUFFIXES:
            loose.append(entry.name)
    found.names = [_name(path, request.path) for path in paths]
    found.skipped += [Skipped(as_unicode(name), "not inside a class folder") for name in loose]
    found.labels, found.store = labels, Files(paths)
    if len(set(labels)) < 2:
        found.notes += _hints(base)
    return found


def _read_all(request: Request) -> Found:
    """Every image file at any depth, whatever the folders mean."""
    base = request.path if request.split is None else request.path / request.split
    if not base.is_dir():
        raise ImagesError(f"{shown(request.path)} has no folder {shown(request.split)}; leave --split away")
    skipped: list[Skipped] = []
    paths = _images_below(str(base), skipped, request.path)
    names = [_name(path, request.path) for path in paths]
    return Found(names, [None] * len(paths), Files(paths), root=request.path, split=request.split, skipped=skipped)


def _base(request: Request) -> tuple[Path, str | None, list[str]]:
    """The folder that holds the classes: the path itself, or the split below it."""
    folders = [entry for entry in listing(request.path) if entry.is_dir()]
    splits = [e.name for e in folders if e.name.lower() in SPLIT_NAMES and _holds_classes(e.path)]
    if request.split is None:
        # A split may lack classes, as a test set often does; it is still no class.
        others = [entry for entry in folders if entry.name.lower() not in SPLIT_NAMES]
        if not splits or any(_holds_an_image(entry.path) for entry in others):
            return request.path, None, []
    elif not splits:
        raise ImagesError(
            f"{shown(request.path)} has no splits: no folder called train, val or test that holds class folders."
            " Leave --split away, or give the folder that holds the classes"
        )
    split = choose_split(request.path, request.split, splits)
    return request.path / split, split, split_note(split, splits)


def _holds_classes(folder: str) -> bool:
    """Whether a folder holds folders and no images of its own, as a split does and a class does not."""
    try:
        entries = listing(Path(folder))
    except ImagesError:
        return False
    loose = any(entry.is_file() and Path(entry.name).suffix.lower() in SUFFIXES for entry in entries)
    return not loose and any(entry.is_dir() for entry in entries)


def _holds_an_image(folder: str) -> bool:
    return bool(_images_below(folder, [], Path(folder), first=True))


def _images_below(folder: str, skipped: list[Skipped], root: Path, *, first: bool = False) -> list[str]:
    """Image files at any depth, in the order of their paths; each real folder is entered once."""
    found: list[str] = []
    entered: set[tuple[int, int]] = set()
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        try:
            status = os.stat(here)
            if (status.st_dev, status.st_ino) in entered:
                continue
            entered.add((status.st_dev, status.st_ino))
            entries = listing(Path(here))
        except (OSError, ImagesError) as error:
            skipped.append(Skipped(_name(here, root), str(error)))
            continue
        for entry in entries:
            if entry.is_dir():
                waiting.append(entry.path)
            elif Path(entry.name).suffix.lower() in SUFFIXES:
                if entry.is_file():
                    found.append(entry.path)
                else:
                    skipped.append(Skipped(_name(entry.path, root), "not a file, or a link that leads nowhere"))
            elif (reason := _unread(entry.name)) is not None:
                skipped.append(Skipped(_name(entry.path, root), reason))
        if first and found:
            return found
    return sorted(found)


def _unread(name: str) -> str | None:
    """Why a file that is probably a picture is not taken for one."""
    suffix = Path(name).suffix.lower()
    if suffix in NOT_READ:
        return f"pictures of this format ({suffix}) are not read: convert it, for instance to PNG"
    return None if suffix else "its name does not say what it is: give it a suffix such as .png"


def _name(path: str, root: Path) -> str:
    return as_unicode(os.path.relpath(path, root)).replace(os.sep, "/")


def _hints(base: Path) -> list[str]:
    """What else the folder could be, for the message that says it has too few classes."""
    files = [e.name for e in listing(base) if e.is_file() and Path(e.name).suffix.lower() in MANIFESTS]
    hints = [f"if the labels are in a table, give that file instead: {few(files)}"] if files else []
    folders = [entry for entry in listing(base) if entry.is_dir()]
    if len(folders) == 1 and _holds_classes(folders[0].path):
        hints.append(f"if the classes are one level deeper, give {shown(folders[0].path)} instead")
    return hints
