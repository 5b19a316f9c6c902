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
from typing import Any

import numpy as np

from sgoif.images.classes import class_text
from sgoif.images.collection import Skipped
from sgoif.images.containment import contained_file
from sgoif.images.errors import ImagesError
from sgoif.images.sources.base import Found, Request, choose_split, listing, refuse_split, split_note, splits_note
from sgoif.images.sources.crops import Crops
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


def read(request: Request) -> Found:
    """Every box with a category, in the order of the images; of all splits, that whose labels matter in front."""
    path = request.path
    if path.is_file():
        refuse_split(request)
        file = path
        top = path.parent.parent if path.parent.name == ANNOTATIONS else path.parent
        return _Reader(request, top).read({None: file})
    files = _files(path)
    split = choose_split(path, request.split, list(files))
    if request.every_split and len(files) > 1:
        reader = _Reader(request, path, [splits_note(files)])
        return replace(reader.read({split: files[split], **files}), split=split, splits=reader.splits)
    return replace(_Reader(request, path, split_note(split, list(files))).read({split: files[split]}), split=split)


class _Reader:
    """Reads JSON files, one after the other."""

    def __init__(self, request: Request, top: Path, notes: Sequence[str] = ()) -> None:
        self.request, self.top, self.root = request, top, top if request.root is None else request.root
        self.found = Found([], [], Crops([], [], np.zeros(0), shares=False), notes=list(notes))
        self.finder = Finder(self.root)
        self.splits: list[str] = []
        self.files: list[str] = []
        self.owners: list[int] = []
        self.boxes: list[tuple[float, ...]] = []
        self.labels: list[str | None] = []
        self.bare = 0

    def read(self, files: Mapping[Any, Path]) -> Found:
        """Every box of these files, which are of one split each."""
        for split, file in files.items():
            self._read(file)
            self.splits += [split or ""] * (len(self.labels) - len(self.splits))
        if self.bare:
            self.found.notes.append(f"{plural(self.bare, 'image has', 'images have')} no box and is left out")
        self.found.labels = self.labels
        self.found.store = Crops(self.files, self.owners, np.array(self.boxes), shares=False)
        return self.found

    def _read(self, file: Path) -> None:
        try:
            record = json.loads(contained_file(self.top, str(file.relative_to(self.top))).read_bytes())
            images = {entry["id"]: entry["file_name"] for entry in record["images"]}
            categories = {entry["id"]: class_text(entry["name"]) for entry in record["categories"]}
            drawn: dict[Any, list[dict[str, Any]]] = {}
            for entry in record["annotations"]:
                drawn.setdefault(entry["image_id"], []).append(entry)
            if not all(isinstance(name, str) for name in images.values()):
                raise ValueError("an image has no name")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
            raise ImagesError(
                f"{shown(file)} is damaged or not in COCO's format ({type(error).__name__}: {error}); expected are"
                " lists of images, annotations and categories"
            ) from error
        base = _base(file, self.root, list(images.values())[:TRIED], self.request)
        self.bare += len(images) - sum(key in drawn for key in images)
        for key, text in images.items():
            if key in drawn:
                self._boxes(base, text, drawn[key], categories)

    def _boxes(self, base: Path, text: str, drawn: list[dict[str, Any]], categories: Mapping[Any, str | None]) -> None:
        """The boxes on one image."""
        file, reason = self.finder.file(os.path.join(base, text))
        if reason is not None:
            boxes = plural(len(drawn), "box", "boxes")
            self.found.skipped.append(Skipped(as_unicode(text), f"{reason} ({boxes})"))
            return
        self.files.append(file)
        name = as_unicode(self.finder.below(file)).replace(os.sep, "/")
        for position, entry in enumerate(drawn, start=1):
            number = entry.get("id")
            called = f"{name}#{number if isinstance(number, int) else position}"
            category = entry.get("category_id")
            box, label = _box(entry), categories.get(category) if isinstance(category, int | str) else None
            if isinstance(box, str) or (label is None and self.request.labelled):
                why = box if isinstance(box, str) else "its category is not listed"
                self.found.skipped.append(Skipped(called, why))
                continue
            self.found.names.append(called)
            self.owners.append(len(self.files) - 1)
            self.boxes.append(box)
            self.labels.append(label)


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


def _files(folder: Path) -> dict[str, Path]:
    """The JSON files of a folder, by split."""
    found: dict[str, Path] = {}
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
