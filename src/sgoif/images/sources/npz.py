"""A numpy archive with images and labels, read without pickle and without unpacking more than needed."""

import math
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.core.serialization import DAMAGE, check_unpacked
from sgoif.core.types import Array
from sgoif.images.backends import Arrays
from sgoif.images.errors import ImagesError
from sgoif.images.sources.base import TRAIN, Found, Request, choose_split, split_note
from sgoif.images.sources.spill import stored
from sgoif.images.text import as_unicode, few, shown

IMAGE_KEYS = ("x", "images", "image", "data", "imgs", "arr_0")
LABEL_KEYS = ("y", "labels", "label", "targets", "target", "arr_1")
CLASS_KEYS = ("class_names", "classes", "label_names")
NAME_KEYS = ("names", "paths", "filenames")
SPLITS = (TRAIN, "val", "test")
CHANNELS = (1, 3, 4)
STORED_AS_IS = zipfile.ZIP_STORED
MAPPED_FROM = 1 << 20
LONGEST_HEAD = 1 << 16


def matches(path: Path) -> bool:
    """A numpy archive by its suffix."""
    return path.is_file() and path.suffix.lower() == ".npz"


def read(request: Request) -> Found:
    """Images [n, H, W], [n, H, W, C] or [n, C, H, W] with one label each."""
    try:
        return _read(request)
    except ImagesError:
        raise
    except (*DAMAGE, SystemError) as error:  # the last for text that holds no characters
        raise ImagesError(f"{shown(request.path)} is not a readable numpy archive: {error}") from error


def _read(request: Request) -> Found:
    path = request.path
    with zipfile.ZipFile(path) as archive:
        check_unpacked(path, archive)
        keys = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        image_key, label_key, split, notes = _choose(keys, request)
        images = _member(archive, path, image_key)
        labels = None if label_key is None else _member(archive, path, label_key)
        extra = {
            kind: _member(archive, path, key)
            for kind, candidates in (("classes", CLASS_KEYS), ("names", NAME_KEYS))
            for key in _named(keys, candidates, split)[:1]
        }
    if labels is not None and len(images) != len(labels):
        raise ImagesError(f"{shown(path)} has {len(images)} images in {image_key!r} and {len(labels)} labels")
    store = Arrays([images], planes_first=_planes_first(images, path, image_key), scale=_scale(images, path, image_key))
    names = _names(extra.get("names"), len(images), split or (TRAIN if request.labelled else None))
    if labels is None or label_key is None:
        return Found(names, [None] * len(images), store, split=split, notes=notes)
    found = Found(names, _labels(labels, path, label_key).tolist(), store, split=split, notes=notes)
    if "classes" in extra and np.asarray(found.labels).dtype.kind in "iu":
        found.known_classes = [_text(name) for name in extra["classes"].ravel().tolist()]
    return found


def _named(keys: Sequence[str], candidates: Sequence[str], split: str | None) -> list[str]:
    """Keys that go by one of the names, with the split's suffix first."""
    lower = {key.lower(): key for key in reversed(keys)}
    forms = [f"{name}_{split}" for name in candidates] + [f"{split}_{name}" for name in candidates] if split else []
    return [lower[form] for form in (*forms, *candidates) if form in lower]


def _choose(keys: Sequence[str], request: Request) -> tuple[str, str | None, str | None, list[str]]:
    """The arrays of images and, where they are wanted, of labels; the split; what to say about it."""
    if not keys:
        raise ImagesError(f"{shown(request.path)} is empty: there is no array in it")
    lower = [key.lower() for key in keys]
    splits = [s for s in SPLITS if any(f"{name}_{s}" in lower or f"{s}_{name}" in lower for name in IMAGE_KEYS[:-1])]
    split = None
    if request.split is not None or (splits and not _named(keys, IMAGE_KEYS, None)):
        if not splits:
            raise ImagesError(f"{shown(request.path)} has no splits such as x_train; its arrays are {few(keys, 20)}")
        split = choose_split(request.path, request.split, splits)
    found: list[str] = []
    for what, asked, candidates, option in (
        ("images", request.image_column, IMAGE_KEYS, "--image-column"),
        ("labels", request.label_column, LABEL_KEYS, "--label-column"),
    )[: 2 if request.labelled else 1]:
        named = [asked] if asked in keys else _named(keys, candidates, split) if asked is None else []
        if not named or named[0] is None:
            raise ImagesError(
                f"{shown(request.path)} has no {what} under {asked or ' or '.join(candidates)!s}; its arrays are"
                f" {few(keys, 20)}. Name the array with {option}"
            )
        found.append(named[0])
    return found[0], found[1] if request.labelled else None, split, split_note(split, splits) if split else []


def _member(archive: zipfile.ZipFile, path: Path, key: str) -> Array:
    """One array: mapped from the file where it is stored as it is, unpacked where it is compressed."""
    info = archive.getinfo(f"{key}.npy")
    with archive.open(info) as stream:
        _check_head(stream.read(12))
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(stream)
        if dtype.hasobject:
            raise ImagesError(
                f"{key!r} in {shown(path)} holds Python objects, which only a pickle can carry and pickles are not"
                " read; save it again as a plain array, e.g. with .astype(str) for text"
            )
        if not shape:
            raise ImagesError(f"{key!r} in {shown(path)} is a single value, not an array")
        if info.compress_type == STORED_AS_IS and info.file_size >= MAPPED_FROM:
            expected = stream.tell() + math.prod(shape) * dtype.itemsize
            if info.file_size != expected or min(shape) < 0:
                raise ValueError(f"{key!r} has {info.file_size:,} bytes instead of {expected:,}")
            start = _data_start(path, info) + stream.tell()
            order = "F" if fortran else "C"
            return np.memmap(path, dtype=dtype, mode="r", offset=start, shape=shape, order=order)  # type: ignore[call-overload,no-any-return]
        return stored(stream, dtype, shape, fortran=fortran)


def _check_head(start: bytes) -> None:
    """Raise where an array announces a head so long that reading it is the attack."""
    length = int.from_bytes(start[8:10] if start[6:7] == b"\1" else start[8:12], "little")
    if length > LONGEST_HEAD:
        raise ValueError(f"an array has a head of {length:,} bytes")


def _data_start(path: Path, info: zipfile.ZipInfo) -> int:
    """Where the bytes of an archive member begin: after its local header, whose two lengths stand at byte 26."""
    with open(path, "rb") as file:
        file.seek(info.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
    return info.header_offset + 30 + int(name) + int(extra)


def _planes_first(images: Array, path: Path, key: str) -> bool:
    shape = images.shape
    if 0 in shape:
        raise ImagesError(f"{key!r} in {shown(path)} is empty: it has the shape {list(shape)}")
    if images.ndim == 3:
        return False
    if images.ndim == 4 and (shape[-1] in CHANNELS or shape[1] in CHANNELS):
        return shape[-1] not in CHANNELS
    raise ImagesError(
        f"{key!r} in {shown(path)} has the shape {list(shape)}; images must be [n, height, width],"
        " [n, height, width, channels] or [n, channels, height, width] with 1, 3 or 4 channels"
    )


def _scale(images: Array, path: Path, key: str) -> float | None:
    """What values are multiplied with to lie in 0..255; None for bytes."""
    if images.dtype == np.uint8:
        return None
    if images.dtype.kind == "b":
        return 255.0
    if images.dtype.kind not in "iuf":
        raise ImagesError(f"{key!r} in {shown(path)} holds {images.dtype}, not numbers; expected is uint8 or float")
    low, high = np.inf, -np.inf
    step = max((1 << 22) // max(images[:1].size, 1), 1)
    for start in range(0, len(images), step):
        block = images[start : start + step]
        block = block[np.isfinite(block)] if block.dtype.kind == "f" else block
        if block.size:
            low, high = min(low, float(block.min())), max(high, float(block.max()))
    if not (low >= 0 and high <= 255):
        raise ImagesError(
            f"{key!r} in {shown(path)} has values from {low:g} to {high:g}; expected are 0 to 1 or 0 to 255."
            " Undo the normalisation, or save the images as uint8"
        )
    return 255.0 if images.dtype.kind == "f" and high <= 1 else 1.0


def _labels(labels: Array, path: Path, key: str) -> Array:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    matrix = labels.ndim == 2 and labels.dtype.kind in "iufb"
    if matrix and (labels.sum(axis=1) == 1).all() and (labels.max(1) == 1).all():
        labels = labels.argmax(axis=1)
    if labels.ndim != 1 or labels.dtype.kind not in "iufUSb":
        raise ImagesError(
            f"{key!r} in {shown(path)} is {labels.dtype} {list(labels.shape)}; expected is one number or text per image"
        )
    return labels


def _names(names: Array | None, count: int, split: str | None) -> list[str]:
    if names is None or names.shape != (count,) or names.dtype.kind not in "USiu":
        return [str(number) if split is None else f"{split}/{number}" for number in range(count)]
    return [_text(name) for name in names.tolist()]


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else as_unicode(str(value))
