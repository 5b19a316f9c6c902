"""Cleaned copies of data sets of boxes in the form that they were read from: COCO or YOLO.

A decision is about a box: its class is changed, or it is taken out. An image goes with the last of its boxes, since as
background it would teach that nothing is there, and moves to another split with all of them. What no image was made of
stays as it was: images without boxes, boxes around crowds, lines that are no boxes.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgoif.audit.dataset_writers import Cleaning, Places
from sgoif.audit.decisions import DecisionsError
from sgoif.images.classes import class_text
from sgoif.images.containment import contained_file
from sgoif.images.sources import coco, yolo
from sgoif.images.sources.crops import Crops
from sgoif.images.sources.manifest import Finder
from sgoif.images.sources.walk import Walk
from sgoif.images.text import as_unicode, few, plural, shown

FOLDERS = re.compile(r"^(path|train|val|test)[ \t]*:.*(?:\n[ \t-].*)*", re.MULTILINE)
"""What data.yaml says of where images are."""
KEYS = {"": "", "tr": "train", "va": "val", "de": "val", "te": "test", "ev": "test"}
"""What it calls a split, by how its folder begins."""
LISTS = ("images", "annotations")


@dataclass
class Drawn:
    """An image as one split lists it."""

    split: str | None
    file: str
    boxes: dict[int, int]
    """Numbers of its boxes, by their places in the file that tells of them."""
    others: int
    """What else that file says about it."""
    key: Any = None
    goes: str | None = None
    """Its new split."""
    place: Path = Path()
    """In the copy."""


def write_coco(cleaning: Cleaning, target: Path | None) -> str:
    """The images, and one JSON file a split."""
    request, top = cleaning.request, coco.top_of(cleaning.request)
    sheets = {split: coco.read_sheet(request, file) for split, file in coco.sheet_files(request).items()}
    taken = [Path(os.path.relpath(sheet.file, top)) for sheet in sheets.values()]
    root, number_of = request.root or top, _by_origin(cleaning)
    finder, images, missing = Finder(root), list[Drawn](), 0
    for split, sheet in sheets.items():
        for key, entry in sheet.images.items():
            file, reason = finder.file(os.path.join(sheet.base, entry["file_name"]))
            places = sheet.drawn.get(key, [])
            if reason is None:
                boxes = {p: n for p in places if (n := number_of.get((str(sheet.file), file, p))) is not None}
                images.append(Drawn(split, file, boxes, len(places) - len(boxes), key))
            missing += reason is not None and not places
    if missing:
        cleaning.notes.append(f"{plural(missing, 'image')} without boxes left out: not found")
    bases = {split: sheet.base for split, sheet in sheets.items()}
    staying = _arranged(cleaning, images, root, bases, taken)
    if target is not None:
        _write_sheets(cleaning, sheets, staying, root)
        for sheet, place in zip(sheets.values(), taken, strict=True):
            _write(target / place, json.dumps(sheet.record))
        _bring(cleaning, staying, target)
    return "images and boxes in COCO's form"


def _write_sheets(
    cleaning: Cleaning, sheets: Mapping[str | None, coco.Sheet], staying: Sequence[Drawn], root: Path
) -> None:
    """Turn what was read from the JSON files into what the new ones will hold."""
    names, before, after = cleaning.collection.class_names, cleaning.collection.labels, cleaning.labels
    remaining = set(cleaning.remaining)
    images: dict[str | None, list[Any]] = {split: [] for split in sheets}
    drawn: dict[str | None, list[tuple[bool, int, Any]]] = {split: [] for split in sheets}
    free = {(split, kind): _Free(sheet.record[kind]) for split, sheet in sheets.items() for kind in LISTS}
    for image in staying:
        old, new = sheets[image.split], sheets[image.goes]
        moves, entry = old is not new, old.images[image.key]
        base = os.path.relpath(new.base, root)
        if os.path.normpath(os.path.join(base, entry["file_name"])) != str(image.place):
            entry["file_name"] = os.path.relpath(image.place, base).replace(os.sep, "/")
        if moves:
            entry["id"] = free[image.goes, "images"].number(entry["id"])
        images[image.goes].append(entry)
        for place in old.drawn.get(image.key, []):
            number, box = image.boxes.get(place), old.record["annotations"][place]
            if number is not None and number not in remaining:
                continue
            name = old.categories.get(box.get("category_id")) if moves else None
            if number is not None and after[number] != before[number]:
                name = names[int(after[number])]
            if name is not None:
                box["category_id"] = _category(new, name, sheets.values())
            if moves:
                box["image_id"] = entry["id"]
                box["id"] = free[image.goes, "annotations"].number(box.get("id"))
            drawn[image.goes].append((moves, place, box))
    for split, sheet in sheets.items():
        ordered = sorted(drawn[split], key=lambda entry: entry[:2])
        sheet.record.update(images=images[split], annotations=[box for _, _, box in ordered])


def _category(sheet: coco.Sheet, name: str, sheets: Iterable[coco.Sheet]) -> Any:
    """The number that a class has in a JSON file; where it has none it is entered as another file has it."""
    for key, text in sheet.categories.items():
        if text == name:
            return key
    every = (entry for other in sheets for entry in other.record["categories"])
    entry = dict(next(entry for entry in every if class_text(entry["name"]) == name))
    entry["id"] = _Free(sheet.record["categories"]).number(entry["id"])
    sheet.record["categories"].append(entry)
    sheet.categories[entry["id"]] = name
    return entry["id"]


class _Free:
    """Numbers that no entry of a list has."""

    def __init__(self, entries: Iterable[Mapping[str, Any]]) -> None:
        self._taken = {entry["id"] for entry in entries if isinstance(entry.get("id"), int | str)}
        self._next = max((number for number in self._taken if isinstance(number, int)), default=0) + 1

    def number(self, wanted: Any) -> Any:
        """The wanted one, or the next where that is taken or is none."""
        if not isinstance(wanted, int | str) or wanted in self._taken:
            wanted = self._next
        self._taken.add(wanted)
        self._next = max(self._next, wanted + 1 if isinstance(wanted, int) else 0)
        return wanted


def write_yolo(cleaning: Cleaning, target: Path | None) -> str:
    """The images, a file of lines for each that had one, and what names the classes."""
    request = cleaning.request
    root, parts, number_of = request.path, yolo.parts_of(request.path), _by_origin(cleaning)
    images, texts = list[Drawn](), dict[str, tuple[Path, str]]()
    for split, file, path, text in yolo.listed(request, parts, Walk(request)):
        if isinstance(text, Exception):
            continue
        lines = [place for place, line in enumerate((text or "").splitlines(), start=1) if line.strip()]
        boxes = {p: n for p in lines if (n := number_of.get((str(path), file, p))) is not None}
        images.append(Drawn(split, file, boxes, len(lines) - len(boxes)))
        if text is not None:
            texts[file] = path, text
    folders = {split: part.images for split, part in parts.items()}
    staying = _arranged(cleaning, images, root, folders, (), texts=True)
    if target is None:
        return "images and boxes in YOLO's form"
    words = {
        int(cleaning.collection.labels[number]): texts[image.file][1].splitlines()[place - 1].split()[0]
        for image in images
        for place, number in image.boxes.items()
    }
    remaining = set(cleaning.remaining)
    for image in staying:
        if image.file in texts:
            path, text = texts[image.file]
            part, new = parts[image.goes or ""], _lines(cleaning, image, text, words, remaining)
            below = os.path.relpath(root / image.place, part.images)
            place = target / Path(os.path.relpath(part.labels, root), below).with_suffix(".txt")
            _write(place, new) if new != text else cleaning.bring(str(path), place)
    _bring(cleaning, staying, target)
    for name in (*yolo.TABLES, *yolo.LISTS):
        with suppress(FileNotFoundError, ValueError):
            text = contained_file(root, name).read_bytes().decode("utf-8-sig")
            _write(target / name, _relocated(text, parts, root) if name in yolo.TABLES else text)
    return "images and boxes in YOLO's form"


def _lines(cleaning: Cleaning, image: Drawn, text: str, words: Mapping[int, str], remaining: set[int]) -> str:
    """The lines of an image after the decisions; a new class is written as a line that has it writes it."""
    before, after = cleaning.collection.labels, cleaning.labels
    lines = text.splitlines(keepends=True)
    for place, number in image.boxes.items():
        if number not in remaining:
            lines[place - 1] = ""
        elif after[number] != before[number]:
            line = lines[place - 1]
            lines[place - 1] = line.replace(line.split()[0], words[int(after[number])], 1)
    return "".join(lines)


def _relocated(text: str, parts: Mapping[str, yolo.Part], root: Path) -> str:
    """data.yaml with the folders of the copy: the old ones may lead to the original."""
    folders = {KEYS[split[:2].lower()]: part.images for split, part in parts.items()}
    if "" in folders:  # there are no splits
        folders = dict.fromkeys(KEYS.values(), folders[""])

    lines = {key: f"{key}: {folder.relative_to(root).as_posix()}" for key, folder in folders.items()}
    return FOLDERS.sub(lambda found: lines.get(found[1], ""), text)


def _by_origin(cleaning: Cleaning) -> dict[tuple[str, str, int], int]:
    """The number of each box by where it is told of."""
    store = cleaning.collection.store
    assert isinstance(store, Crops)
    return {store.origin(number): number for number in range(len(store))}


def _arranged(
    cleaning: Cleaning,
    images: Sequence[Drawn],
    root: Path,
    bases: Mapping[Any, Path],
    taken: Iterable[Path],
    *,
    texts: bool = False,
) -> list[Drawn]:
    """The images that will be in the copy, with their new splits and places, those that move behind the others.

    With `texts` no two have the same name but for its suffix, since their lines would share a file.
    """
    remaining, places = set(cleaning.remaining), Places()
    for path in taken:
        places.take(path)
    staying = [image for image in images if _stays(cleaning, image, remaining)]
    if len(staying) < len(images):
        cleaning.notes.append(f"{plural(len(images) - len(staying), 'image')} left out, since no box remains")
    along = sum(_move(cleaning, image, [n for n in image.boxes.values() if n in remaining]) for image in staying)
    if along:
        cleaning.notes.append(f"{plural(along, 'box', 'boxes')} moved along with others of the same image")
    given: dict[tuple[str, Path], Path] = {}
    staying.sort(key=lambda image: image.goes != image.split)
    for image in staying:
        wanted, start, end = Path(os.path.relpath(image.file, root)), bases[image.split], bases[image.goes]
        below = Path(os.path.relpath(image.file, start))
        if start != end and below.parts[0] != os.pardir:
            wanted = Path(os.path.relpath(end / below, root))
        if (image.file, wanted) not in given:  # two files may tell of an image
            place = places.take(wanted.with_suffix(".txt") if texts else wanted)
            given[image.file, wanted] = place.with_suffix(wanted.suffix) if texts else place
            cleaning.ways["renamed"] += given[image.file, wanted] != wanted
        image.place = given[image.file, wanted]
    names = (os.path.relpath(image.file, root) for image in staying)
    cleaning.carried.update(as_unicode(name).replace(os.sep, "/") for name in names)
    return staying


def _stays(cleaning: Cleaning, image: Drawn, remaining: set[int]) -> bool:
    """Whether there are boxes on an image still, or never were any; what cannot be read goes."""
    boxes = image.boxes.values()
    readable = any(number not in cleaning.unreadable for number in boxes)
    return not boxes or any(number in remaining for number in boxes) or (image.others > 0 and readable)


def _move(cleaning: Cleaning, image: Drawn, boxes: Sequence[int]) -> int:
    """Find out where an image goes, and take all of its boxes there; how many were not decided to."""
    image.goes, splits = image.split, cleaning.splits
    if splits is None:
        return 0
    wanted = sorted({splits[number] for number in boxes} - {image.split or ""})
    if len(wanted) > 1:
        name = cleaning.collection.names[boxes[0]].rpartition("#")[0]
        raise DecisionsError(
            f"boxes of {shown(name)} are to go to the splits {few(wanted)}, but an image goes to one, with all of its"
            " boxes; choose the same for all, or decide about one alone"
        )
    image.goes = wanted[0] if wanted else image.split
    along = [number for number in boxes if splits[number] != image.goes]
    for number in along:
        splits[number] = image.goes or ""
    return len(along)


def _bring(cleaning: Cleaning, staying: Iterable[Drawn], target: Path) -> None:
    for place, file in {image.place: image.file for image in staying}.items():
        cleaning.bring(file, target / place)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "x", encoding="utf-8", newline="") as file:
        file.write(text)
