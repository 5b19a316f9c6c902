"""What is measured of every image while it is decoded: numbers that say whether it is dark, blurred or a copy.

Large images are first reduced to 256 pixels of the longer side, so what is measured does not depend on how many pixels
a camera has, and costs little. Brightness of a pixel is √(0.241 R² + 0.691 G² + 0.068 B²), which follows how light a
colour looks.

Sharpness compares the differences between adjacent pixels (root of their mean square) with those between adjacent
averages of 4 × 4 pixels, across and down, and takes the smaller ratio, since what moved is blurred in one direction. In
photographs both are about as large, whatever their size, since the contrast of natural scenes is nearly the same at
every scale. What is blurred, or was enlarged, has lost the finer ones: the ratio falls towards 1/4. It is 4 in pure
noise and more in fine patterns. Multiplying the contrast leaves it as it is.
"""

import calendar
import re
import time
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sgoif.core.serialization import DAMAGE, atomic_write, check_unpacked
from sgoif.core.types import Array
from sgoif.images.errors import ImagesError
from sgoif.images.text import shown

SIDE = 256
"""Pixels of the longer side at which an image is measured."""
BLOCK = 4
FAINT = 1.0
"""Levels, of 255, by which averages of blocks have to differ for sharpness to mean something."""
SLIGHT = 0.4
"""Share of the stronger direction below which the other one is left out: it is that of stripes."""
HASHED, FREQUENCIES, CELLS = 32, 8, 8
WEIGHTS = (0.241, 0.691, 0.068)
EXIF, TAKEN, CHANGED = 0x8769, 0x9003, 0x0132
DATE = re.compile(r"(\d{4}):(\d\d):(\d\d) (\d\d):(\d\d):(\d\d)")
ROW = np.dtype(
    [
        ("width", "<i4"), ("height", "<i4"), ("file_bytes", "<i8"), ("format", "S9"), ("grey", "?"),
        *((name, "<f4") for name in ("brightness", "darkest", "brightest", "contrast", "entropy", "sharpness")),
        ("colour", "<f4", (3,)), ("saturation", "<f4"), ("border", "<f4", (3,)), ("border_spread", "<f4"),
        ("content", "u1", (16,)), ("hash", "<u8"), ("thumbnail", "u1", (CELLS, CELLS, 3)), ("taken", "<f8"),
    ]
)  # fmt: skip
"""The fields of `Measurements`, for one image."""


@dataclass(frozen=True, eq=False)
class Measurements:
    """One row for each readable image. Brightness and colours lie between 0 and 1."""

    width: Array
    height: Array
    """int32 [n], upright as a person sees it."""
    file_bytes: Array
    """int64 [n]; 0 where images share a file."""
    format: Array
    """bytes [n]: how it is encoded, in Pillow's words; empty for rows of arrays."""
    grey: Array
    """bool [n]: every pixel is grey."""
    brightness: Array
    """float32 [n]: the mean."""
    darkest: Array
    brightest: Array
    """float32 [n]: the 5th and the 99th percentile of brightness."""
    contrast: Array
    """float32 [n]: the standard deviation of brightness."""
    entropy: Array
    """float32 [n]: bits of the histogram of brightness, 0 to 8."""
    sharpness: Array
    """float32 [n]: how much lies in the finest details, whatever the contrast; nan: too small or too flat to say."""
    colour: Array
    """float32 [n, 3]: the mean."""
    saturation: Array
    """float32 [n]: the mean."""
    border: Array
    """float32 [n, 3]: the mean colour of the outermost pixels."""
    border_spread: Array
    """float32 [n]: their standard deviation; small where the background is plain."""
    content: Array
    """uint8 [n, 16]: a digest of the decoded pixels, equal for exact copies."""
    hash: Array
    """uint64 [n]: a perceptual hash, few bits apart for near copies."""
    thumbnail: Array
    """uint8 [n, 8, 8, 3]: the image shrunk to so many averages."""
    taken: Array
    """float64 [n]: seconds since 1970 on the clock of the camera when it took it, by EXIF; nan: not known."""

    def __len__(self) -> int:
        return len(self.width)

    @classmethod
    def of(cls, rows: Sequence[Array]) -> "Measurements":
        """From what `measure` returned for each image."""
        table = np.concatenate([np.zeros(0, dtype=ROW), *rows])
        return cls(**{field.name: np.ascontiguousarray(table[field.name]) for field in fields(cls)})

    def save(self, path: Path) -> None:
        """Write all columns, whole or not at all."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        atomic_write(path, lambda file: np.savez(file, **columns))


def load_measurements(path: Path) -> Measurements:
    """Read what `Measurements.save` wrote; `ImagesError` where that is not what the file holds."""
    try:
        with zipfile.ZipFile(path) as directory:
            check_unpacked(path, directory, packed=False)
        with np.load(path, allow_pickle=False) as archive:
            columns = {field.name: archive[field.name] for field in fields(Measurements)}
        count = len(columns["width"])
        for name, column in columns.items():
            if (column.dtype, column.shape) != (ROW[name].base, (count, *ROW[name].shape)):
                raise ValueError(f"{name} is {column.dtype} {list(column.shape)}")
        return Measurements(**columns)
    except DAMAGE as error:
        raise ImagesError(f"{shown(path)} does not hold the measurements of images ({error})") from error


def measure(image: Image.Image, content: bytes, *, grey: bool) -> Array:
    """The row of one upright image of mode "L" or "RGB", [1]; its `content` and whether it is `grey` are known."""
    row = np.zeros(1, dtype=ROW)
    row["width"], row["height"] = image.size
    row["format"] = (image.format or "").encode()
    row["grey"], row["content"] = grey, np.frombuffer(content, dtype=np.uint8)
    row["taken"] = date_taken(image)
    if grey and image.mode == "RGB":
        image = image.getchannel(0)
    small = _reduced(image)
    values = np.atleast_3d(np.asarray(small))
    planes = np.ascontiguousarray(values.transpose(2, 0, 1))
    light = planes[0] if grey else _brightness(planes)
    shades = Image.fromarray(light)
    _lightness(row, shades)
    row["sharpness"] = _sharpness(light, shades)
    row["colour"] = planes.mean((1, 2)) / 255
    row["saturation"] = 0 if grey else _saturation(planes)
    frames = np.concatenate([planes[:, 0], planes[:, -1], planes[:, 1:-1, 0], planes[:, 1:-1, -1]], 1) / np.float32(255)
    row["border"] = frames.mean(1)
    row["border_spread"] = np.sqrt(frames.var(1).mean())
    row["hash"] = _hash(np.asarray(shades.resize((HASHED, HASHED), Image.Resampling.BILINEAR), dtype=np.float32))
    cells = np.asarray(small.resize((CELLS, CELLS), Image.Resampling.BOX))
    row["thumbnail"] = cells[..., None] if grey else cells
    return row


def date_taken(image: Image.Image) -> float:
    """When the camera took it, by its EXIF; nan where that does not say, or is damaged."""
    found = None
    with suppress(Exception):  # damaged EXIF raises anything
        exif = image.getexif()
        found = exif.get(CHANGED)
        found = exif.get_ifd(EXIF).get(TAKEN) or found
    date = DATE.match(found) if isinstance(found, str) else None
    if date is None:
        return float("nan")
    with suppress(ValueError):  # "0000:00:00 00:00:00" is what a clock that was never set writes
        parts = [int(part) for part in date.groups()]
        time.strptime(date.group(), "%Y:%m:%d %H:%M:%S")
        return float(calendar.timegm((*parts, 0, 0, 0)))
    return float("nan")


def _reduced(image: Image.Image) -> Image.Image:
    longer = max(image.size)
    if longer <= SIDE:
        return image
    width, height = (max(1, round(side * SIDE / longer)) for side in image.size)
    return image.resize((width, height), Image.Resampling.HAMMING, reducing_gap=2.0)


def _brightness(planes: Array) -> Array:
    total = np.zeros(planes[0].shape, dtype=np.float32)
    for plane, weight in zip(planes, WEIGHTS, strict=True):
        part = plane.astype(np.float32)
        part *= part
        part *= np.float32(weight)
        total += part
    np.sqrt(total, out=total)
    np.rint(total, out=total)
    return total.astype(np.uint8)


def _lightness(row: Array, shades: Image.Image) -> None:
    """What the histogram of brightness tells."""
    share = np.asarray(shades.histogram(), dtype=np.float64) / (shades.width * shades.height)
    levels = np.arange(256) / 255
    mean = float(share @ levels)
    row["brightness"] = mean
    row["contrast"] = np.sqrt(share @ (levels - mean) ** 2)
    row["darkest"], row["brightest"] = np.searchsorted(np.cumsum(share), (0.05, 0.99)) / 255
    some = share[share > 0]
    row["entropy"] = -(some @ np.log2(some))


def _sharpness(light: Array, shades: Image.Image) -> float:
    if min(light.shape) < 2 * BLOCK:
        return float("nan")
    fine, coarse = _differences(light), _differences(np.asarray(shades.reduce(BLOCK)))
    least = max(FAINT, SLIGHT * max(coarse))
    return min((one / other for one, other in zip(fine, coarse, strict=True) if other >= least), default=float("nan"))


def _differences(light: Array) -> tuple[float, float]:
    """Root mean square difference of adjacent pixels across and down, in levels."""
    shades = light.astype(np.float32)
    across, down = (shades[:, 1:] - shades[:, :-1]).ravel(), (shades[1:] - shades[:-1]).ravel()
    return float(np.sqrt(across @ across / across.size)), float(np.sqrt(down @ down / down.size))


def _saturation(planes: Array) -> float:
    most = planes.max(0)
    span = most - planes.min(0)
    return float(np.mean(span / np.maximum(most, 1).astype(np.float32)))


def _cosines() -> Array:
    angles = np.outer(np.arange(FREQUENCIES), 2 * np.arange(HASHED) + 1) * (np.pi / (2 * HASHED))
    waves: Array = np.cos(angles).astype(np.float32)
    return waves


COSINES = _cosines()


def _hash(shades: Array) -> int:
    """Which of the 8 × 8 lowest frequencies of the cosine transform lie above their median."""
    waves = np.rint(COSINES @ shades @ COSINES.T)  # whole numbers, so that rounding decides nothing in a flat image
    middle = np.sort(waves, axis=None)[waves.size // 2 - 1 : waves.size // 2 + 1]  # np.median takes five times as long
    bits = (waves > middle.mean()).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")
