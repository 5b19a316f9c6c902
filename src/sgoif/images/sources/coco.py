"""Boxes in COCO's JSON format, each an image of the class of its category, called FILE#ID after its annotation.

A JSON file, or a folder that has one called `_annotations.coco.json` for each split, or some in `annotations/`, as
COCO itself does (instances_train2017.json). Names of files start from the folder of the JSON file, or, where they do
not lead to anything there, from the folders beside it; no file outside the folder that was opened, or `root`, is read.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sgoif.images.classes import class_text
from sgoif.images.collection import Skipped
from sgoif.images.containment import contained_file
from sgoif.images.errors import ImagesError
from sgoif.images.sources.base import Found, Request, choose_split, listing, refuse_split, split_note, splits_note
from sgoif.images.sources.crops import NO_BOXES, Crops
from sgoif.images.sources.manifest import Finder
from sgoif.images.text import as_unicode, plural, shown

ANNOTATIONS, BESIDE = "annotations", "_annotations.coco.json"
KEYS = (b'"images"', b'"annotations"', b'"categories"', b'"licenses"')
HEAD = 1 << 16
YEAR = re.compile(r"_?\d{4}$")
MOST = 1e9
"""A pixel beyond which no image reaches."""
TRIED = 5
"""Images that are looked for, to find the folder that names start from."""


def matches(path: Path) -> bool:
    """A JSON file with COCO's lists, or a folder with such files where they usually lie."""
    if path.is_file():
        return path.suffix.lower() == ".json" and _is_coco(path)
    return path.is_dir() and bool(_files(path))


class Sheet(NamedTuple):
    """A JSON file."""

    file: Path
    record: dict[str, Any]
    images: dict[Any, dict[str, Any]]
    """Entries by their number."""
    categories: dict[Any, str | None]
    drawn: dict[Any, list[int]]
    """Places of annotations in their list, by the number of their image."""
    base: Path
    """The folder that names of files start from."""


def read(request: Request) -> Found:
    """Every box with a category, in the order of the images; of all splits, that whose labels matter in front."""
    files = sheet_files(request)
    split: str | None = None
    notes: list[str] = []
    if request.path.is_dir():
        named = [name for name in files if name is not None]
        split = choose_split(request.path, request.split, named)
        every = request.every_split and len(named) > 1
        notes = [splits_note(named)] if every else split_note(split, named)
        files = {split: files[split], **(files if every else {})}
    reader = _Reader(request, notes)
    return replace(reader.read(files), split=split, splits=reader.splits if len(files) > 1 else None)


def sheet_files(request: Request) -> dict[str | None, Path]:
    """The JSON files by split; None where a single one was given."""
    if request.path.is_dir():
        return _files(request.path)
    refuse_split(request)
    return {None: request.path}


def top_of(request: Request) -> Path:
    """The folder that holds everything."""
    if request.path.is_dir():
        return request.path
    return request.path.parent.parent if request.path.parent.name == ANNOTATIONS else request.path.parent


def read_sheet(request: Request, file: Path) -> Sheet:
    """What a JSON file lists, after a look at whether it is in COCO's form."""
    top = top_of(request)
    try:
        record = json.loads(contained_file(top, str(file.relative_to(top))).read_bytes())
        images = {entry["id"]: entry for entry in record["images"]}
        categories = {entry["id"]: class_text(entry["name"]) for entry in record["categories"]}
        drawn: dict[Any, list[int]] = {}
        for place, entry in enumerate(record["annotations"]):
            drawn.setdefault(entry["image_id"], []).append(place)
        names = [entry["file_name"] for entry in images.values()]
        if not all(isinstance(name, str) for name in names):
            raise ValueError("an image has no name")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise ImagesError(
            f"{shown(file)} is damaged or not in COCO's format ({type(error).__name__}: {error}); expected are"
            " lists of images, annotations and categories"
        ) from error
    return Sheet(file, record, images, categories, drawn, _base(file, request.root or top, names[:TRIED], request))


class _Reader:
    """Reads JSON files, one after the other."""

    def __init__(self, request: Request, notes: Sequence[str] = ()) -> None:
        self.request, self.root = request, request.root or top_of(request)
        self.found = Found([], [], NO_BOXES, root=self.root, notes=list(notes))
        self.finder = Finder(self.root)
        self.splits: list[str] = []
        self.files: list[str] = []
        self.owners: list[int] = []
        self.boxes: list[tuple[float, ...]] = []
        self.labels: list[str | None] = []
        self.told: list[str] = []
        self.places: list[int] = []
        self.bare = 0

    def read(self, files: Mapping[Any, Path]) -> Found:
        """Every box of these files, which are of one split each."""
        for split, file in files.items():
            sheet = read_sheet(self.request, file)
            self.bare += len(sheet.images) - sum(key in sheet.drawn for key in sheet.images)
            for key, image in sheet.images.items():
                if key in sheet.drawn:
                    self._boxes(sheet, image["file_name"], sheet.drawn[key])
            self.splits += [split or ""] * (len(self.labels) - len(self.splits))
        if self.bare:
            self.found.notes.append(f"{plural(self.bare, 'image has', 'images have')} no box")
        self.found.labels = self.labels
        self.found.store = Crops(
            self.files, self.owners, np.array(self.boxes), shares=False, told=self.told, places=self.places
        )
        return self.found

    def _boxes(self, sheet: Sheet, text: str, places: Sequence[int]) -> None:
        """The boxes on one image."""
        file, reason = self.finder.file(os.path.join(sheet.base, text))
        if reason is not None:
            boxes = plural(len(places), "box", "boxes")
            self.found.skipped.append(Skipped(as_unicode(text), f"{reason} ({boxes})"))
            return
        self.files.append(file)
        self.told.append(str(sheet.file))
        name = as_unicode(self.finder.below(file)).replace(os.sep, "/")
        for position, place in enumerate(places, start=1):
            entry = sheet.record["annotations"][place]
            number = entry.get("id")
            called = f"{name}#{number if isinstance(number, int) else position}"
            category = entry.get("category_id")
            box, label = _box(entry), sheet.categories.get(category) if isinstance(category, int | str) else None
            if isinstance(box, str) or (label is None and self.request.labelled):
                why = box if isinstance(box, str) else "its category is not listed"
                self.found.skipped.append(Skipped(called, why))
                continue
            self.found.names.append(called)
            self.owners.append(len(self.files) - 1)
            self.boxes.append(box)
            self.labels.append(label)
            self.places.append(place)


def _box(entry: dict[str, Any]) -> tuple[float, ...] | str:
    """Left, top, right and bottom; the reason where there is no such box."""
    box = entry.get("bbox")
    if entry.get("iscrowd") == 1:
        return "its box is drawn around a crowd"
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(v, int | float) for v in box):
        return "it has no box of four numbers"
    if not all(abs(v) < MOST for v in box) or box[2] <= 0 or box[3] <= 0:  # nor is any of them nan
        return "its box has no area, or lies nowhere"
    left, top, width, height = map(float, box)
    return left, top, left + width, top + height


def _base(file: Path, root: Path, names: list[str], request: Request) -> Path:
    """The folder that names of files start from: the first in which the first few images lie."""
    split = YEAR.sub("", file.stem.rpartition("_")[2])
    beside = [file.stem.rpartition("_")[2], split, "images", f"images/{split}", ""]
    places = [file.parent, *(file.parent.parent / name for name in beside)] if request.root is None else [root]
    for place in places:
        if os.path.commonpath([root, place]) == str(root) and any((place / name).is_file() for name in names):
            return place
    return places[0]


def _files(folder: Path) -> dict[str | None, Path]:
    """The JSON files of a folder, by split."""
    found: dict[str | None, Path] = {}
    for entry in listing(folder):
        file = Path(entry.path, BESIDE) if os.path.isdir(entry.path) else Path(entry.path)
        if file.name == BESIDE and file.is_file():
            found[entry.name if os.path.isdir(entry.path) else "train"] = file
    annotations = folder / ANNOTATIONS
    for file in _listed(annotations) if not found and annotations.is_dir() else ():
        if (
            file.suffix.lower() == ".json"
            and (file.stem.startswith("instances") or "_" not in file.stem)
            and _is_coco(file)
        ):
            found[YEAR.sub("", file.stem.removeprefix("instances").removeprefix("_")) or "train"] = file
    return found


def _listed(folder: Path) -> Iterator[Path]:
    return (Path(entry.path) for entry in listing(folder) if not os.path.isdir(entry.path))


def _is_coco(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD)
    except OSError:
        return False
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") and any(key in head for key in KEYS)
