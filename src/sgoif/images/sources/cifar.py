"""CIFAR-10 and CIFAR-100, binary and Python versions.

A binary record is one label byte (CIFAR-100: coarse, then fine) and 3 × 1024 pixel bytes, plane after plane.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from sgoif.core.types import Array
from sgoif.images.backends import Arrays
from sgoif.images.errors import ImagesError
from sgoif.images.sources.base import TRAIN, Found, Request, choose_split, numbers_as_names, refuse_split, split_note
from sgoif.images.sources.safe_pickle import read_pickle
from sgoif.images.text import few, shown

PIXELS = 3 * 32 * 32
FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar-100-binary", "cifar-100-python")
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
SPLITS = (TRAIN, "test")


def matches(path: Path) -> bool:
    """A folder in CIFAR's layout or right above it, or one binary file of whole records."""
    if path.is_file():
        size = path.stat().st_size
        return path.suffix == ".bin" and size > 0 and (size % (PIXELS + 1) == 0 or size % (PIXELS + 2) == 0)
    return path.is_dir() and _folder(path) is not None


def read(request: Request) -> Found:
    """Images and labels of one split, in the order of the files."""
    if request.path.is_file():
        return _read_file(request)
    here = _folder(request.path)
    assert here is not None, "it matches"
    folder, classes, binary = here
    split = choose_split(request.path, request.split, SPLITS)
    stems = (BATCHES if split == TRAIN else ("test_batch",)) if classes == 10 else (split,)
    files = [folder / (f"{stem}.bin" if binary else stem) for stem in stems]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ImagesError(f"{shown(folder)} lacks {few(missing)}: unpack the archive again")
    parts = [_binary(file, classes) if binary else _python(file, classes) for file in files]
    found = _found(parts, split, _class_names(folder, classes, binary))
    found.split, found.notes = split, split_note(split, SPLITS)
    return found


def _read_file(request: Request) -> Found:
    refuse_split(request)
    size = request.path.stat().st_size
    hundred = size % (PIXELS + 1) != 0 or (size % (PIXELS + 2) == 0 and request.path.stem in SPLITS)
    classes = 100 if hundred else 10
    part = _binary(request.path, classes)
    return _found([part], request.path.stem, _class_names(request.path.parent, classes, True))


def _found(parts: Sequence[tuple[Array, Array]], prefix: str, names: list[str]) -> Found:
    labels = np.concatenate([labels for _, labels in parts])
    store = Arrays([images for images, _ in parts])
    return Found(numbers_as_names(prefix, len(labels)), labels.tolist(), store, known_classes=names)


def _folder(path: Path) -> tuple[Path, int, bool] | None:
    """The folder of the files, the number of classes, and whether the files are binary."""
    candidates = [path, *(path / name for name in FOLDERS)]
    here = [(folder, *kind) for folder in candidates if folder.is_dir() and (kind := _kind(folder)) is not None]
    if len(here) > 1:
        raise ImagesError(
            f"{shown(path)} holds several versions of CIFAR: {few(found[0].name for found in here)}; give one of them"
        )
    return here[0] if here else None


def _kind(folder: Path) -> tuple[int, bool] | None:
    """Number of classes and whether the files are binary."""
    if any((folder / f"{name}.bin").is_file() for name in (*BATCHES, "test_batch")):
        return 10, True
    if any((folder / name).is_file() for name in (*BATCHES, "test_batch")):
        return 10, False
    if all((folder / name).is_file() for name in ("train.bin", "test.bin")):
        return 100, True
    if all((folder / name).is_file() for name in ("train", "test", "meta")):
        return 100, False
    return None


def _binary(path: Path, classes: int) -> tuple[Array, Array]:
    head = 1 if classes == 10 else 2
    size = path.stat().st_size
    if size == 0 or size % (PIXELS + head):
        raise ImagesError(
            f"{shown(path)} has {size:,} bytes, not a whole number of records of {PIXELS + head}: unpack it again"
        )
    records = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, PIXELS + head)
    return _pictures(records[:, head:]), _checked(records[:, head - 1], classes, path)


def _python(path: Path, classes: int) -> tuple[Array, Array]:
    content = read_pickle(path)
    data, labels = content.get("data"), content.get("labels" if classes == 10 else "fine_labels")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != PIXELS or not _plain(labels, int):
        raise ImagesError(f"{shown(path)} does not hold the arrays of a CIFAR file; it has {few(content)}")
    if len(labels) != len(data):
        raise ImagesError(f"{shown(path)} has {len(data)} images and {len(labels)} labels: unpack it again")
    return _pictures(data), _checked(labels, classes, path)


def _pictures(rows: Array) -> Array:
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _checked(labels: Any, classes: int, path: Path) -> Array:
    try:
        numbers = np.asarray(labels, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.array([-1])
    if not len(numbers):
        raise ImagesError(f"{shown(path)} holds no image: unpack it again")
    if numbers.ndim != 1 or numbers.min() < 0 or numbers.max() >= classes:
        raise ImagesError(f"{shown(path)} has labels outside 0 to {classes - 1}: not CIFAR-{classes}, or damaged")
    return numbers


def _plain(values: Any, *kinds: type) -> TypeGuard[list[Any]]:
    """Whether this is a list of nothing but such values: lists in lists can stand for more than any memory holds."""
    return isinstance(values, list) and all(type(value) in kinds for value in values)


def _class_names(folder: Path, classes: int, binary: bool) -> list[str]:
    """From the file that lists them, where it is there and fits; else the numbers."""
    names: list[str] = []
    if binary:
        file = folder / ("batches.meta.txt" if classes == 10 else "fine_label_names.txt")
        if file.is_file():
            names = [line.strip() for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
            names = [name for name in names if name]
    else:
        file = folder / ("batches.meta" if classes == 10 else "meta")
        if file.is_file():
            listed = read_pickle(file).get("label_names" if classes == 10 else "fine_label_names", [])
            if _plain(listed, str, bytes):
                names = [n.decode("utf-8", "replace") if isinstance(n, bytes) else n for n in listed]
    return names if len(names) == classes else [str(number) for number in range(classes)]
