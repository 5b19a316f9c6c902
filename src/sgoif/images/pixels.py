"""Images as one array on disk, with what is known about each of them.

`pixels.npy` holds the array, `thumbs.bin` the thumbnails end to end, `measurements.npz` what was measured of each
image, `images.json` everything else. The last is written last and removed first, so a folder without it, or whose files
do not have the sizes it states, is not complete. It has digests of the others and of itself, so that what was damaged
or put there since is not taken for the images.

The folder may have come from somebody else and what is in it goes to a browser: thumbnails are of the types that are
written here and begin as such files do, and no link is followed out of the folder.
"""

import hashlib
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, features

from sgoif.core.serialization import DAMAGE
from sgoif.core.types import Array
from sgoif.images.collection import Skipped
from sgoif.images.containment import contained_file
from sgoif.images.errors import ChangedImagesError, ImagesError
from sgoif.images.measurements import Measurements, load_measurements
from sgoif.images.text import shown

VERSION = 2
PIXELS, THUMBS, MEASURED, IMAGES = "pixels.npy", "thumbs.bin", "measurements.npz", "images.json"
WEBP = bool(features.check("webp"))
THUMBNAIL_TYPE = "image/webp" if WEBP else "image/jpeg"
THUMBNAIL_SIDE = 96
MOST_SIDE, MOST_THUMBNAIL = 1024, 2**20
"""Pixels of a side of the array, and bytes of a thumbnail, that are ever written; more would fill the memory."""
MAGIC = {"image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL), "image/jpeg": re.compile(rb"\xff\xd8\xff")}
"""The types that thumbnails may have, and how their files begin."""


@dataclass(frozen=True)
class Duplicate:
    """Images with the same pixels, or nearly the same."""

    indices: tuple[int, ...]
    conflicting: bool
    """Their labels differ, so at least one of them is wrong, or likely to be."""


@dataclass(eq=False)
class Pixels:
    """Every readable image of a collection at one size. Positions in all fields agree."""

    names: list[str]
    labels: Array
    """int64, positions in `class_names`"""
    class_names: list[str]
    skipped: list[Skipped]
    duplicates: list[Duplicate]
    """Images with the same pixels at their original size."""
    near_duplicates: list[Duplicate]
    """Images that are nearly the same, one of each group of duplicates among them."""
    files: list[str | None]
    """The file of each image; None where images share a file."""
    sizes: Array
    """Original width and height, int64 [n, 2]"""
    array: Array
    """uint8 [n, channels, size, size], mapped from disk, read-only"""
    digest: str
    """Digest of the collection it was made from."""
    content: str
    """Digest of `array` as it was written."""
    thumbnail_type: str
    folder: Path
    _thumbs: bytes | Array
    _ends: Array

    def __len__(self) -> int:
        return len(self.names)

    @property
    def channels(self) -> int:
        """1 where every image is grey, else 3."""
        return int(self.array.shape[1])

    @property
    def size(self) -> int:
        """Side of the square."""
        return int(self.array.shape[2])

    def repeated(self) -> list[int]:
        """Every image that occurs more than once, be it nearly the same."""
        return sorted({row for group in (*self.duplicates, *self.near_duplicates) for row in group.indices})

    def measurements(self) -> Measurements:
        """What was measured of every image; `ImagesError` where that is damaged."""
        found = load_measurements(contained_file(self.folder, MEASURED))
        if len(found) != len(self):
            raise ImagesError(
                f"{shown(self.folder / MEASURED)} is about {len(found):,} images instead of {len(self):,}"
            )
        return found

    def thumbnails(self, number: int) -> bytes:
        """A small encoded picture, at most 96 pixels wide and high."""
        if not 0 <= number < len(self):
            raise IndexError(f"image {number} of {len(self)}")
        start = int(self._ends[number - 1]) if number else 0
        end = int(self._ends[number])
        stored = bytes(self._thumbs[start:end])
        # An image that already has the size of the array was not stored a second time; bytes that are no picture are
        # damaged or were put there by somebody else.
        return stored if image_type(stored) == self.thumbnail_type else thumbnail(_picture(self.array[number]))


def image_type(content: bytes) -> str | None:
    """The type of a thumbnail by its first bytes; None where it is of none that is written here."""
    return next((kind for kind, start in MAGIC.items() if start.match(content)), None)


def _picture(planes: Array) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(planes[0] if len(planes) == 1 else planes.transpose(1, 2, 0)))


def thumbnail(image: Image.Image) -> bytes:
    """Encode an image after shrinking it into the square of a thumbnail."""
    if max(image.size) > THUMBNAIL_SIDE:
        image = image.copy()
        image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BICUBIC, reducing_gap=2.0)
    target = io.BytesIO()
    if WEBP:
        image.save(target, "WEBP", quality=80, method=1)
    else:
        image.save(target, "JPEG", quality=80)
    return target.getvalue()


def file_digest(path: Path) -> str:
    """Digest of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def record_digest(record: dict[str, Any]) -> str:
    """Digest of what images.json says, without the digests in it."""
    text = json.dumps({**record, "digests": None}, separators=(",", ":"), sort_keys=True)
    return hashlib.blake2b(text.encode()).hexdigest()


def _check_content(folder: Path, record: dict[str, Any], digests: dict[str, str]) -> None:
    for name in (PIXELS, THUMBS, MEASURED, IMAGES):
        found = record_digest(record) if name == IMAGES else file_digest(contained_file(folder, name))
        if found != digests[name]:
            raise ChangedImagesError(
                f"{shown(folder / name)} has been changed or damaged since it was written, so these are not the images"
                " that were prepared. Put the file back, or move the folder away to have the images read anew"
            )


def open_pixels(folder: str | Path, *, verify: bool = True) -> Pixels:
    """Open what `prepare` wrote; `ImagesError` where it is not there or not complete.

    `verify` reads all of it and raises `ChangedImagesError` where it is not as it was written.
    """
    where = Path(folder)
    try:
        record = json.loads(contained_file(where, IMAGES).read_text(encoding="utf-8"))
        if record["version"] != VERSION:
            raise ValueError(f"version {record['version']} instead of {VERSION}")
        digests = dict(record["digests"])
        for name, size in record["bytes"].items():
            if (where / Path(name).name).stat().st_size != size:
                raise ValueError(f"{name} does not have the {size} bytes it should")
        array = np.load(contained_file(where, PIXELS), mmap_mode="r", allow_pickle=False)
        count = len(record["names"])
        if array.dtype != np.uint8 or array.shape != (count, record["channels"], record["size"], record["size"]):
            raise ValueError(f"{PIXELS} has the shape {array.shape}")
        if array.shape[1] not in (1, 3) or not 1 <= array.shape[2] <= MOST_SIDE:
            raise ValueError(f"{array.shape[1]} channels of {array.shape[2]} pixels a side, as no pictures here have")
        if record["thumbnails"]["type"] not in MAGIC:
            kind = record["thumbnails"]["type"]
            raise ValueError(f"thumbnails of the type {shown(kind)} instead of {' or '.join(MAGIC)}")
        ends = np.cumsum(np.asarray(record["thumbnails"]["lengths"], dtype=np.int64))
        if max(record["thumbnails"]["lengths"]) > MOST_THUMBNAIL:
            raise ValueError(f"a thumbnail of more than {MOST_THUMBNAIL:,} bytes")
        total = int(ends[-1])
        thumbs = np.memmap(contained_file(where, THUMBS), dtype=np.uint8, mode="r") if total else b""
        if len(thumbs) != total:
            raise ValueError(f"{THUMBS} has {len(thumbs)} bytes instead of {total}")
        pixels = Pixels(
            names=record["names"],
            labels=np.asarray(record["labels"], dtype=np.int64),
            class_names=record["class_names"],
            skipped=[Skipped(*entry) for entry in record["skipped"]],
            duplicates=[Duplicate(tuple(indices), conflicting) for indices, conflicting in record["duplicates"]],
            near_duplicates=[Duplicate(tuple(indices), conflicting) for indices, conflicting in record["alike"]],
            files=record["files"],
            sizes=np.asarray(record["sizes"], dtype=np.int64).reshape(-1, 2),
            array=array,
            digest=record["digest"],
            content=digests[PIXELS],
            thumbnail_type=record["thumbnails"]["type"],
            folder=where,
            _thumbs=thumbs,
            _ends=ends,
        )
        if not len(pixels.labels) == len(pixels.files) == len(pixels.sizes) == len(ends) == count:
            raise ValueError("its lists differ in length")
        if verify:
            _check_content(where, record, digests)
        return pixels
    except ChangedImagesError:
        raise
    except DAMAGE as error:
        raise ImagesError(f"{shown(where)} does not hold a complete set of prepared images ({error})") from error
