"""From a path to a collection: recognise the layout, read names and labels, check that there is enough to compare."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.images.backends import Files
from sgoif.images.classes import class_text, numbered, twin_notes
from sgoif.images.collection import Collection, ManifestRows, Skipped
from sgoif.images.decode import SUFFIXES
from sgoif.images.errors import ImagesError
from sgoif.images.sources import LAYOUTS
from sgoif.images.sources.base import Found, Request
from sgoif.images.text import as_unicode, few, plural, shown

KNOWN = (
    "a folder with one subfolder per class, a CSV, TSV or Parquet table of paths and labels, a Hugging Face data set on"
    " disk, WebDataset tar files, boxes in the form of COCO or YOLO, CIFAR or idx (MNIST) files, or a .npz archive"
)


def open_images(
    path: str | os.PathLike[str],
    *,
    layout: str = "auto",
    split: str | None = None,
    root: str | os.PathLike[str] | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    follow_links: bool = False,
    every_split: bool = False,
) -> Collection:
    """Open labelled images in any known layout; no image is decoded yet.

    `split` chooses among train, test, ... where the data have several ("train" by default). `root` is the folder that
    the paths of a table start from. The two column names are for tables and archives. `limit` takes that many images,
    spread evenly over all of them. Links in a folder that lead out of it or into another class are left out and counted
    in `notes`; `follow_links` follows them. `every_split` opens all splits of folders and files, if there are any, and
    fills `splits`; `split` is then the one that would be opened otherwise, and images of the others may lack labels.
    """
    columns = {"image_column": image_column, "label_column": label_column}
    choice = {"split": split, "follow_links": follow_links, "every_split": every_split}
    request = _request(path, limit, root=root, **choice, **columns)
    name = _layout(request, layout)
    collection = _collect(LAYOUTS[name].read(request), request, name)
    if limit is not None and limit < len(collection):
        collection = without_empty_classes(_some(collection, limit))
    check(collection)
    return collection


def open_unlabelled(
    path: str | os.PathLike[str], *, layout: str = "auto", limit: int | None = None, **options: Any
) -> Collection:
    """Open images whose labels do not matter: whatever `open_images` reads, all images below any folder, an archive
    without labels, or a single image. Every label is -1. The options are those of `open_images`.
    """
    request = _request(path, limit, labelled=False, **options)
    source = request.path
    if layout == "auto" and source.is_file() and source.suffix.lower() in SUFFIXES:
        name, found = "image", Found([as_unicode(source.name)], [None], Files([source]), root=source.parent)
    else:
        name = _layout(request, layout)
        found = LAYOUTS[name].read(request)
    collection = Collection(
        names=_unique(found.names),
        labels=np.full(len(found.names), -1, dtype=np.int64),
        class_names=[],
        layout=name,
        source=source,
        store=found.store,
        root=found.root,
        split=found.split,
        skipped=found.skipped,
        notes=found.notes,
    )
    if not collection:
        why = "".join(f"; {shown(entry.name)}: {entry.reason}" for entry in collection.skipped[:3])
        raise ImagesError(
            f"{shown(source)} holds no image (read as {name!r}){why}. Expected is a folder with images at any depth,"
            f" one image, or {KNOWN}"
        )
    return collection if limit is None or limit >= len(collection) else _some(collection, limit)


def _request(
    path: str | os.PathLike[str], limit: int | None, *, root: str | os.PathLike[str] | None = None, **options: Any
) -> Request:
    """What was asked for, after a look at whether it is there."""
    source = Path(os.path.abspath(path))
    if not os.path.exists(source):
        raise ImagesError(f"{shown(os.fspath(path))} does not exist; give the path of {KNOWN}")
    if limit is not None and limit < 2:
        raise ImagesError(f"limit = {limit} is too small; at least 2 images are needed")
    start = None if root is None else Path(os.path.abspath(root))
    return Request(source, root=start, **options)


def _some(collection: Collection, limit: int) -> Collection:
    """So many of the images, spread evenly."""
    spread = np.linspace(0, len(collection) - 1, limit).round().astype(int)
    chosen = collection.pick(spread.tolist())
    chosen.notes.append(f"taking {limit:,} of the images, spread evenly")
    return chosen


def _layout(request: Request, layout: str) -> str:
    """The name of the layout, after a look at whether the options mean something to it."""
    name = _recognised(request.path, layout)
    for option in ("split", "root", "image_column", "label_column", "follow_links", "every_split"):
        if getattr(request, option) not in (None, False) and option not in LAYOUTS[name].options:
            where = shown(request.path)
            raise ImagesError(f"{option} means nothing for {where}, which is read as {name!r}; leave it away")
    return name


def _recognised(source: Path, layout: str) -> str:
    if layout != "auto":
        if layout not in LAYOUTS:
            raise ImagesError(f"layout = {layout!r} is unknown; choose auto, {', '.join(LAYOUTS)}")
        if not LAYOUTS[layout].matches(source):
            raise ImagesError(f"{shown(source)} does not look like the layout {layout!r}; leave --layout away to guess")
        return layout
    for name, candidate in LAYOUTS.items():
        if candidate.matches(source):
            return name
    hint = " Unpack the archive first." if source.suffix.lower() in (".zip", ".tar", ".gz", ".tgz", ".7z") else ""
    raise ImagesError(f"{shown(source)} is in no layout that is known.{hint} Expected is {KNOWN}")


def _collect(found: Found, request: Request, layout: str) -> Collection:
    """Number the classes; leave out images whose label is missing or names no class."""
    known = None if found.known_classes is None else list(found.known_classes)
    texts: list[str] = []
    kept: list[int] = []
    labelled: list[int] = []
    for number, label in enumerate(found.labels):
        text = class_text(label)
        if known is not None and text is not None and not isinstance(label, str):
            place = _whole(label)
            text = known[place] if place is not None and 0 <= place < len(known) else None
        if label is None and found.splits is not None:
            kept.append(number)
        elif text is None:
            reason = f"the label {shown(label)} is none of the {len(known)} classes" if known else "it has no label"
            found.skipped.append(Skipped(found.names[number], reason))
        else:
            labelled.append(len(kept))
            kept.append(number)
            texts.append(text)
    if known is not None and set(texts) - set(known):
        known += sorted(set(texts) - set(known))
    given, class_names = numbered(texts, known)
    labels = np.full(len(kept), -1, dtype=np.int64)
    labels[labelled] = given
    if known is not None and len(class_names) < len(set(known)):
        present = set(class_names)
        absent = [name for name in dict.fromkeys(known) if name not in present]
        found.notes.append(f"{plural(len(absent), 'class', 'classes')} without images left out: {few(absent)}")
    found.notes += twin_notes(class_names)
    whole = len(kept) == len(found.names)
    rows = None
    if found.rows is not None and found.columns is not None:
        rows = ManifestRows(*found.columns, found.rows if whole else [found.rows[number] for number in kept])
    return Collection(
        names=_unique(found.names if whole else [found.names[number] for number in kept]),
        labels=labels,
        class_names=class_names,
        layout=layout,
        source=request.path,
        store=found.store if whole else found.store.pick(kept),
        root=found.root,
        split=found.split,
        splits=None if found.splits is None else [found.splits[number] for number in kept],
        skipped=found.skipped,
        notes=found.notes,
        manifest=rows,
    )


def _whole(label: Any) -> int | None:
    """The number of a class; None for what is no number, such as a date."""
    value = label.item() if isinstance(label, np.generic) else label
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else None
    return value if isinstance(value, int) else None


def _unique(names: Sequence[str]) -> list[str]:
    """Names with a number added where one occurs again."""
    if len(set(names)) == len(names):
        return list(names)
    taken, unique = set(names), []
    free: dict[str, int] = {}
    for name in names:
        chosen = name
        if name in free:
            while (chosen := f"{name}#{free[name]}") in taken:
                free[name] += 1
            taken.add(chosen)
        free.setdefault(name, 2)  # all lower numbers stay taken, so each is tried once
        unique.append(chosen)
    return unique


def without_empty_classes(collection: Collection, reason: str = "none of its images is taken") -> Collection:
    """Renumber the classes so that each has an image; the others are reported."""
    present = np.unique(collection.labels[collection.labels >= 0])
    position = np.full(len(collection.class_names) + 1, -1, dtype=np.int64)
    position[present] = np.arange(len(present))
    gone = sorted(set(range(len(collection.class_names))) - set(present.tolist()))
    dropped = [Skipped(collection.class_names[number], f"class left out: {reason}") for number in gone]
    return replace(
        collection,
        class_names=[collection.class_names[number] for number in present],
        labels=position[collection.labels],
        skipped=collection.skipped + dropped,
    )


def check(collection: Collection) -> None:
    """At least two images of at least two classes."""
    where, total = shown(collection.source), len(collection)
    why = "".join(f"; {shown(entry.name)}: {entry.reason}" for entry in collection.skipped[:3])
    advice = "".join(f". {note[:1].upper()}{note[1:]}" for note in collection.notes)
    if total == 0:
        raise ImagesError(
            f"{where} holds no readable image (read as {collection.layout!r}){why}. Expected is {KNOWN}{advice}"
        )
    if total < 2:
        raise ImagesError(f"{where} holds a single image; an audit compares images with each other{why}{advice}")
    if len(collection.class_names) < 2:
        raise ImagesError(
            f"{where} holds only one class, {shown(collection.class_names[0])}, with {total:,} images; an audit"
            f" compares classes, so it needs at least two{why}{advice}"
        )
