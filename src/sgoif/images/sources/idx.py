"""The idx format of MNIST and its relatives: a magic number, the sizes, then the values; often gzipped."""

import gzip
import math
import os
import re
import struct
import zlib
from pathlib import Path

import numpy as np

from sgoif.core.types import Array
from sgoif.images.backends import Arrays
from sgoif.images.errors import ImagesError
from sgoif.images.sources.base import (
    TRAIN,
    Found,
    Request,
    choose_split,
    listing,
    numbers_as_names,
    refuse_split,
    split_note,
)
from sgoif.images.sources.spill import stored
from sgoif.images.text import few, shown

IMAGES = re.compile(r"^(?P<stem>.*)images(?P<dots>[-.]idx)\d-ubyte(\.gz)?$")
TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
PLACES = (".", "raw", "MNIST/raw", "FashionMNIST/raw", "KMNIST/raw", "QMNIST/raw", "EMNIST/raw")


def matches(path: Path) -> bool:
    """A file of images in idx format, or a folder (or `raw` below it) that holds one."""
    if path.is_file():
        return IMAGES.match(path.name) is not None
    return path.is_dir() and bool(_image_files(path))


def read(request: Request) -> Found:
    """Images and labels of one split."""
    if request.path.is_file():
        refuse_split(request)
        file, split, notes = request.path, _split(request.path.name), []
    else:
        by_split: dict[str, list[Path]] = {}
        for candidate in _image_files(request.path):
            by_split.setdefault(_split(candidate.name), []).append(candidate)
        split = choose_split(request.path, request.split, list(by_split))
        if len(by_split[split]) > 1:
            several = few(f.relative_to(request.path) for f in by_split[split])
            raise ImagesError(f"{shown(request.path)} holds several sets of images: {several}; give one of these files")
        file, notes = by_split[split][0], split_note(split, list(by_split))
    images, labels = _read(file), _read(_labels_beside(file))
    if images.ndim not in (3, 4) or images.dtype != np.uint8 or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ImagesError(
            f"{shown(file)} should hold bytes [n, height, width] with labels [n]; found {images.dtype}"
            f" {list(images.shape)} and {labels.dtype} {list(labels.shape)}"
        )
    if 0 in images.shape:
        raise ImagesError(f"{shown(file)} holds no pixels: its shape is {list(images.shape)}")
    if images.ndim == 4 and images.shape[-1] not in (1, 3, 4):
        raise ImagesError(f"{shown(file)} has {images.shape[-1]} channels; 1, 3 or 4 can be read")
    if len(images) != len(labels):
        raise ImagesError(f"{shown(file)} has {len(images)} images but there are {len(labels)} labels")
    names = numbers_as_names(split, len(labels))
    return Found(names, labels.tolist(), Arrays([images]), split=split, notes=notes)


def _image_files(path: Path) -> list[Path]:
    """Image files here or in `raw` below; of a file and its gzipped twin only the first."""
    found: dict[str, Path] = {}
    for place in PLACES:
        folder = path / place
        if folder.is_dir():
            for entry in listing(folder):
                if IMAGES.match(entry.name) and os.path.isfile(entry.path):
                    found.setdefault(entry.name.removesuffix(".gz"), folder / entry.name)
    return list(found.values())


def _split(name: str) -> str:
    return "test" if "t10k" in name or "test" in name else TRAIN


def _labels_beside(images: Path) -> Path:
    match = IMAGES.match(images.name)
    assert match is not None
    stem = f"{match['stem']}labels{match['dots']}"
    for ending in ("1-ubyte", "1-ubyte.gz", "1-int", "1-int.gz"):
        file = images.with_name(stem + ending)
        if file.is_file():
            return file
    raise ImagesError(f"{shown(images)} has no labels beside it; expected is a file {shown(stem + '1-ubyte')}")


def _read(path: Path) -> Array:
    try:
        packed = path.suffix == ".gz"
        with gzip.open(path) if packed else open(path, "rb") as file:
            magic = file.read(4)
            if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or not 1 <= magic[3] <= 4:
                raise ImagesError(f"{shown(path)} does not start like an idx file; unpack or download it again")
            dtype, dimensions = np.dtype(TYPES[magic[2]]), magic[3]
            shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
            if not packed:
                start = 4 + 4 * dimensions
                expected = start + math.prod(shape) * dtype.itemsize
                if path.stat().st_size != expected:
                    raise EOFError(f"{path.stat().st_size:,} bytes instead of {expected:,}")
                if dtype == np.uint8 and 0 not in shape:
                    return np.memmap(path, dtype=np.uint8, mode="r", offset=start, shape=shape)
            return stored(file, dtype, shape, packed=path.stat().st_size if packed else None)
    except (EOFError, OSError, struct.error, zlib.error, ValueError, MemoryError) as error:
        if isinstance(error, ImagesError):
            raise
        raise ImagesError(f"{shown(path)} is cut off or damaged ({error}); download it again") from error
