"""Boxes as YOLO's text files have them, each an image of its class, called FILE#LINE after the line that it stands on.

    images/a.jpg  labels/a.txt                         without splits
    images/train/a.jpg  labels/train/a.txt             or one folder for each split in both,
    train/images/a.jpg  train/labels/a.txt             or both in one folder for each split

A line is a class and the centre, width and height of its box, or a class and the corners of a polygon, as shares of the
width and height of the image. Names of classes stand in data.yaml under `names`, or in classes.txt, one a line.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sgoif.images.collection import Skipped
from sgoif.images.containment import contained_file
from sgoif.images.errors import ImagesError
from sgoif.images.sources.base import SPLIT_NAMES, TRAIN, Found, Request, choose_split, listing, split_note, splits_note
from sgoif.images.sources.crops import NO_BOXES, Crops
from sgoif.images.sources.walk import Walk
from sgoif.images.text import plural, shown

IMAGES, LABELS = "images", "labels"
TABLES = ("data.yaml", "dataset.yaml", "data.yml", "dataset.yml")
LISTS = ("classes.txt", "obj.names", "classes.names")
MOST_BYTES = 1 << 22
MOST_CLASSES = 100_000
MOST = 1e6
"""A share beyond which no box reaches."""
ITEM = re.compile(r"^\s*(?:(?P<number>\d+)\s*:|-)\s*(?P<name>.*?)\s*$")


class Part(NamedTuple):
    """Folders of one split."""

    images: Path
    labels: Path


def matches(path: Path) -> bool:
    """A folder with images and, beside them, text files of the same names."""
    return path.is_dir() and any(_holds_texts(part.labels) for part in parts_of(path).values())


def read(request: Request) -> Found:
    """Every box of one split, or of all, in the order of the images and of the lines."""
    parts = parts_of(request.path)
    split, notes = None, list[str]()
    if list(parts) == [""]:
        if request.split is not None:
            raise ImagesError(f"{shown(request.path)} has no splits; leave --split away")
    else:
        split = choose_split(request.path, request.split, list(parts))
        notes = split_note(split, list(parts))
    classes, pose = _names(request.path)
    every = request.every_split and len(parts) > 1
    if every:
        notes = [splits_note(parts)]
    else:
        parts = {split or "": parts[split or ""]}
    walk = Walk(request)
    found = Found([], [], NO_BOXES, root=request.path, split=split, known_classes=classes)
    found.splits = [] if every else None
    files: list[str] = []
    told: list[str] = []
    owners: list[int] = []
    places: list[int] = []
    boxes: list[tuple[float, ...]] = []
    labels: list[int] = []
    bare = 0
    for name, file, path, text in listed(request, parts, walk):
        files.append(file)
        told.append(str(path))
        bare += text is None
        if isinstance(text, Exception):
            found.skipped.append(Skipped(walk.name(str(path)), f"its boxes cannot be read: {text}"))
            continue
        for number, line in enumerate((text or "").splitlines(), start=1):
            if not line.strip():
                continue
            drawn = _box(line, pose)
            if isinstance(drawn, str):
                found.skipped.append(Skipped(f"{walk.name(file)}#{number}", drawn))
                continue
            found.names.append(f"{walk.name(file)}#{number}")
            owners.append(len(files) - 1)
            places.append(number)
            labels.append(drawn[0])
            boxes.append(drawn[1])
            if found.splits is not None:
                found.splits.append(name)
    if bare:
        notes.append(f"{plural(bare, 'image has', 'images have')} no file of boxes")
    if classes is None:
        notes.append(
            f"no names of classes were found in {', '.join((TABLES[0], LISTS[0]))}; their numbers stand for them"
        )
    found.notes, found.skipped = notes + walk.notes(), walk.skipped + found.skipped
    found.labels = labels
    found.store = Crops(files, owners, np.array(boxes), shares=True, told=told, places=places)
    return found


def listed(
    request: Request, parts: Mapping[str, Part], walk: Walk
) -> Iterator[tuple[str, str, Path, str | Exception | None]]:
    """Split, image file, file of its boxes and what that holds, of every image; None: there is no such file."""
    for name, part in parts.items():
        for file in walk.images(str(part.images)) or []:
            path = Path(part.labels, os.path.relpath(file, part.images)).with_suffix(".txt")
            try:
                yield name, file, path, _text(request.path, path)
            except FileNotFoundError:
                yield name, file, path, None
            except (OSError, ValueError) as error:
                yield name, file, path, error


def parts_of(folder: Path) -> dict[str, Part]:
    """Folders of images and of labels by split; the split is empty where there are none."""
    images, labels = folder / IMAGES, folder / LABELS
    if images.is_dir() and labels.is_dir():
        names = [entry.name for entry in listing(images) if os.path.isdir(entry.path) and _is_split(entry.name)]
        inside = {name: Part(images / name, labels / name) for name in names if (labels / name).is_dir()}
        return inside or {"": Part(images, labels)}
    names = [entry.name for entry in listing(folder) if os.path.isdir(entry.path) and _is_split(entry.name)]
    whole = {name: Part(folder / name / IMAGES, folder / name / LABELS) for name in names}
    return {name: part for name, part in whole.items() if part.images.is_dir() and part.labels.is_dir()}


def _is_split(name: str) -> bool:
    """COCO's years and the like may follow, as in train2017."""
    return name.lower().rstrip("0123456789") in SPLIT_NAMES | {TRAIN}


def _holds_texts(folder: Path) -> bool:
    return any(name.endswith(".txt") for _, _, names in os.walk(folder) for name in names)


def _text(root: Path, file: Path) -> str:
    """What a small file of the data set holds."""
    path = contained_file(root, str(file.relative_to(root)))
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"the file has more than {MOST_BYTES:,} bytes")
    return path.read_bytes().decode("utf-8-sig")


def _box(line: str, pose: bool) -> tuple[int, tuple[float, ...]] | str:
    """The class and left, top, right and bottom; the reason where a line holds no such thing."""
    words = line.split()
    try:
        label, values = int(words[0]), np.array([float(word) for word in words[1:]])
    except ValueError:
        return "its line is not a class and numbers"
    if label < 0 or not (np.abs(values) < MOST).all():
        return "its line holds numbers that are no class or no share of an image"
    if len(values) in (4, 5) or (pose and len(values) > 5):  # a fifth number says how sure a model was
        centre, half = values[:2], values[2:4] / 2
        corners = np.stack([centre - half, centre + half])
    elif len(values) >= 6 and len(values) % 2 == 0:
        corners = np.stack([values.reshape(-1, 2).min(0), values.reshape(-1, 2).max(0)])
    else:
        return "its line holds neither a box of four numbers nor a polygon"
    if not (corners[1] > corners[0]).all():
        return "its box has no area"
    return label, tuple(corners.ravel().tolist())


def _names(folder: Path) -> tuple[list[str] | None, bool]:
    """Names of classes by number, if any, and whether lines hold points of a body behind their box."""
    names, pose = None, False
    for name in (*TABLES, *LISTS):
        try:
            text = _text(folder, folder / name)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise ImagesError(f"{shown(folder / name)} cannot be read: {error}") from error
        if name in LISTS:
            names = [line.strip() for line in text.splitlines() if line.strip()]
        else:
            names, pose = _from_table(text, folder / name), re.search(r"^kpt_shape\s*:", text, re.MULTILINE) is not None
        break
    return names, pose


def _from_table(text: str, path: Path) -> list[str]:
    """The list or table `names` of a YAML file, of which nothing else matters."""
    found = re.search(r"^names\s*:[ \t]*(?P<here>[^\n#]*)", text, re.MULTILINE)
    items: dict[int, str] = {}
    if found is not None and (here := found["here"].strip()):
        end = text.find("]" if here.startswith("[") else "}", found.start("here"))
        inside = text[found.start("here") + 1 : end] if end > 0 and here[0] in "[{" else ""
        for number, item in enumerate(re.findall(r"'(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\"|[^,\s][^,]*", inside)):
            key, colon, value = item.partition(":")
            numbered = here[0] == "{" and colon and key.strip().isdecimal()
            items[int(key) if numbered else number] = _plain(value if numbered else item)
    elif found is not None:
        for line in text[found.end() :].splitlines():
            item = ITEM.match(line)
            if item is not None:
                items[int(item["number"]) if item["number"] else len(items)] = _plain(item["name"])
            elif line.strip() and not line.lstrip().startswith("#"):
                break
    if not items or max(items) >= MOST_CLASSES or not all(items.values()):
        raise ImagesError(
            f"{shown(path)} does not list the names of classes in a way that is understood; expected is, for instance,"
            " names: [cat, dog]"
        )
    return [items.get(number, str(number)) for number in range(max(items) + 1)]


def _plain(text: str) -> str:
    """A name without quotes or a comment behind it."""
    text = text.strip()
    if text[:1] in ("'", '"'):
        end = text.rfind(text[0])
        return text[1:end].replace("''", "'") if text[0] == "'" else text[1:end]
    return re.sub(r"\s+#.*$", "", text)
