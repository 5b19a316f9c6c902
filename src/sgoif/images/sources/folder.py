"""A folder with one subfolder per class. Folders below a class belong to it; `walk` says which links are followed."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sgoif.images.backends import Files
from sgoif.images.collection import Skipped
from sgoif.images.errors import ImagesError
from sgoif.images.sources.base import SPLIT_NAMES, Found, Request, choose_split, listing, split_note, splits_note
from sgoif.images.sources.walk import FOLLOW, Walk, is_image, is_link
from sgoif.images.text import as_unicode, few, shown

MANIFESTS = (".csv", ".tsv", ".parquet", ".pq")


def matches(path: Path) -> bool:
    """Any folder will do; this layout is tried last."""
    return path.is_dir()


def read(request: Request) -> Found:
    """Every image file below a class folder, by name."""
    walk = Walk(request)
    if request.split is not None and (why := walk.refusal(os.path.join(request.path, request.split))):
        raise ImagesError(f"the split {shown(request.split)} of {shown(request.path)} is not read: it {why}; {FOLLOW}")
    if not request.labelled:
        return _read_all(request, walk)
    base, split, splits = _base(request, walk)
    if split is not None and request.every_split:
        return _read_splits(request, walk, split)
    folders = [os.path.join(base, entry.name) for entry in listing(base) if _is_folder(entry)]
    walk.label(folders + [os.path.join(request.path, name) for name in splits if name != split])
    paths, labels = _read_classes(base, walk)
    notes = (split_note(split, splits) if split else []) + walk.notes()
    if len(set(labels)) < 2:
        notes += _hints(base)
    return _found(request, walk, paths, labels, split, notes)


def _read_splits(request: Request, walk: Walk, split: str) -> Found:
    """Every image file of every split; those of a split without class folders have no label."""
    bases = [Path(entry.path) for entry in listing(request.path) if entry.name.lower() in SPLIT_NAMES]
    bases = [base for base in bases if base.is_dir() and not (base.is_symlink() and walk.refusal(str(base)))]
    classed = {base for base in bases if _holds_classes(str(base))}
    walk.label(
        path
        for base in bases
        for path in ([entry.path for entry in listing(base) if _is_folder(entry)] if base in classed else [str(base)])
    )
    paths: list[str] = []
    labels: list[str | None] = []
    splits: list[str] = []
    for base in bases:
        if base in classed:
            files, texts = _read_classes(base, walk)
            labels += texts
        else:
            files = walk.images(str(base)) or []
            labels += [None] * len(files)
        paths += files
        splits += [as_unicode(base.name)] * len(files)
    notes = [splits_note(splits), *walk.notes()]
    return replace(_found(request, walk, paths, labels, split, notes), splits=splits)


def _read_classes(base: Path, walk: Walk) -> tuple[list[str], list[str]]:
    """Every image file below the class folders of a folder, and the class of each."""
    labels: list[str] = []
    paths: list[str] = []
    loose: list[str] = []
    for entry in listing(base):
        if _is_folder(entry):
            files = walk.images(entry.path)
            if files is None:
                continue
            if not files:
                reason = "class left out: its folder holds no image files"
                walk.skipped.append(Skipped(walk.name(entry.path), reason))
            paths += files
            labels += [as_unicode(entry.name)] * len(files)
        elif is_image(entry.name):
            loose.append(walk.name(entry.path))
    walk.skipped += [Skipped(name, "not inside a class folder") for name in loose]
    return paths, labels


def _found(
    request: Request, walk: Walk, paths: list[str], labels: Sequence[Any], split: str | None, notes: list[str]
) -> Found:
    names = list(map(walk.name, paths))
    return Found(names, labels, Files(paths), root=request.path, split=split, skipped=walk.skipped, notes=notes)


def _read_all(request: Request, walk: Walk) -> Found:
    """Every image file at any depth, whatever the folders mean."""
    base = request.path if request.split is None else request.path / request.split
    if not base.is_dir():
        raise ImagesError(f"{shown(request.path)} has no folder {shown(request.split)}; leave --split away")
    paths = walk.images(str(base)) or []
    return _found(request, walk, paths, [None] * len(paths), request.split, walk.notes())


def _base(request: Request, walk: Walk) -> tuple[Path, str | None, list[str]]:
    """The folder that holds the classes: the path itself, or the split below it; and all splits there are."""
    folders = [
        entry
        for entry in listing(request.path)
        if _is_folder(entry) and not (is_link(entry) and walk.refusal(entry.path))
    ]
    splits = [e.name for e in folders if e.name.lower() in SPLIT_NAMES and _holds_classes(e.path)]
    if request.split is None:
        # A split may lack classes, as a test set often does; it is still no class.
        others = [entry for entry in folders if entry.name.lower() not in SPLIT_NAMES]
        if not splits or any(Walk(request).images(entry.path, first=True) for entry in others):
            return request.path, None, []
    elif not splits:
        raise ImagesError(
            f"{shown(request.path)} has no splits: no folder called train, val or test that holds class folders."
            " Leave --split away, or give the folder that holds the classes"
        )
    split = choose_split(request.path, request.split, splits)
    return request.path / split, split, splits


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or leads to one; a link that leads nowhere, or to itself, does not."""
    return os.path.isdir(entry.path) if is_link(entry) else entry.is_dir()


def _holds_classes(folder: str) -> bool:
    """Whether a folder holds folders and no images of its own, as a split does and a class does not."""
    try:
        entries = listing(Path(folder))
    except ImagesError:
        return False
    return not any(is_image(e.name) and os.path.isfile(e.path) for e in entries) and any(map(_is_folder, entries))


def _hints(base: Path) -> list[str]:
    """What else the folder could be, for the message that says it has too few classes."""
    files = [e.name for e in listing(base) if os.path.isfile(e.path) and Path(e.name).suffix.lower() in MANIFESTS]
    hints = [f"if the labels are in a table, give that file instead: {few(files)}"] if files else []
    folders = [entry for entry in listing(base) if _is_folder(entry)]
    if len(folders) == 1 and _holds_classes(folders[0].path):
        hints.append(f"if the classes are one level deeper, give {shown(folders[0].path)} instead")
    return hints
