"""Where the images of a collection lie: files, arrays. (Tables of encoded images are in `sources/arrow_rows`.)

A store decodes image i on demand from any thread, and says enough about its contents to notice a change.
"""

import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from sgoif.core.types import Array
from sgoif.images.decode import STRIP, decode, reason, size_of, to_plain
from sgoif.images.errors import UnreadableImageError

Update = Callable[[bytes], None]
BLOCK = 1 << 21


class Store(Protocol):
    """Images by number."""

    def __len__(self) -> int: ...

    def file(self, number: int) -> Path | None:
        """The file that holds exactly this image; None where images share a file."""
        return None

    def image(self, number: int, most: int | None = None, least: int | None = None) -> Image.Image:
        """Decoded, upright, mode "L" or "RGB"; `LargeImageError` where it has more than `most` pixels.

        With `least`, a larger image may come smaller, with at least so many pixels a side.
        """

    def size(self, number: int) -> tuple[int, int]:
        """Width and height, without decoding."""

    def content(self, number: int, update: Update) -> None:
        """Feed what is stored for one image, whatever its name; `UnreadableImageError` where that fails."""

    def fingerprint(self, update: Update) -> None:
        """Feed everything that tells these images from others."""

    def pick(self, numbers: Sequence[int]) -> "Store":
        """The store of some of the images."""


class Files(Store):
    """One file per image."""

    def __init__(self, paths: Sequence[Path | str]) -> None:
        self._paths = [os.fspath(path) for path in paths]

    def __len__(self) -> int:
        return len(self._paths)

    def file(self, number: int) -> Path | None:
        return Path(self._paths[number])

    def image(self, number: int, most: int | None = None, least: int | None = None) -> Image.Image:
        return decode(Path(self._paths[number]), most, least)

    def size(self, number: int) -> tuple[int, int]:
        return size_of(Path(self._paths[number]))

    def content(self, number: int, update: Update) -> None:
        try:
            if not os.stat(self._paths[number]).st_size:  # a pipe or a device, too
                raise UnreadableImageError("the file is empty")
            with open(self._paths[number], "rb") as file:
                while block := file.read(BLOCK):
                    update(block)
        except OSError as error:
            raise UnreadableImageError(reason(error)) from error

    def fingerprint(self, update: Update) -> None:
        for path in self._paths:
            update(stamp(path))

    def pick(self, numbers: Sequence[int]) -> "Files":
        return Files([self._paths[number] for number in numbers])


class Encoded(Store):
    """Images that lie encoded in files which they share."""

    @abstractmethod
    def encoded(self, number: int) -> bytes:
        """The image as it is stored, or as a file of its own would hold it."""

    def image(self, number: int, most: int | None = None, least: int | None = None) -> Image.Image:
        return decode(self.encoded(number), most, least)

    def size(self, number: int) -> tuple[int, int]:
        return size_of(self.encoded(number))

    def content(self, number: int, update: Update) -> None:
        update(self.encoded(number))


def stamp(path: str | Path) -> bytes:
    """Size and time of change of a file."""
    try:
        status = os.stat(path)
    except OSError as error:
        return f"missing {error.errno};".encode()
    return f"{status.st_size} {status.st_mtime_ns};".encode()


def _in_bytes(values: Array, scale: float) -> Array:
    """Numbers times a scale, as bytes; so many at a time that memory hardly grows."""
    scaled = np.empty(values.shape, dtype=np.uint8)
    step = max(STRIP // max(values[:1].size, 1), 1)
    for start in range(0, len(values), step):
        part = values[start : start + step].astype(np.float64)
        if not np.isfinite(part).all():
            raise UnreadableImageError("some pixels are infinite or not numbers")
        scaled[start : start + step] = np.rint(part * scale).clip(0, 255)
    return scaled


class Arrays(Store):
    """Images as rows of one or more arrays [n, H, W], [n, H, W, C] or [n, C, H, W], of bytes or of numbers to scale."""

    def __init__(
        self,
        parts: Sequence[Array],
        *,
        planes_first: bool = False,
        scale: float | None = None,
        rows: Sequence[int] | None = None,
    ) -> None:
        self._parts, self._planes_first, self._scale = list(parts), planes_first, scale
        self._starts = np.cumsum([0, *(len(part) for part in parts)])
        self._rows = np.arange(self._starts[-1]) if rows is None else np.asarray(rows, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def raw(self, number: int) -> Array:
        """The stored row, untouched."""
        row = int(self._rows[number])
        part = int(np.searchsorted(self._starts, row, side="right")) - 1
        found: Array = self._parts[part][row - self._starts[part]]
        return found

    def image(self, number: int, most: int | None = None, least: int | None = None) -> Image.Image:
        values = self.raw(number)
        if self._scale is not None:
            values = _in_bytes(values, self._scale)
        values = np.asarray(values, dtype=np.uint8)
        if values.ndim == 3:
            values = values.transpose(1, 2, 0) if self._planes_first else values
            values = values[..., 0] if values.shape[-1] == 1 else values
        try:
            return to_plain(Image.fromarray(np.ascontiguousarray(values)))
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            raise UnreadableImageError(f"no image can have the shape {list(values.shape)}") from error

    def size(self, number: int) -> tuple[int, int]:
        shape = self._parts[0].shape[1:]
        height, width = shape[-2:] if self._planes_first or len(shape) == 2 else shape[:2]
        return int(width), int(height)

    def content(self, number: int, update: Update) -> None:
        values = np.ascontiguousarray(self.raw(number))
        update(f"{values.dtype} {values.shape} {self._planes_first} {self._scale};".encode())
        update(values.tobytes())

    def fingerprint(self, update: Update) -> None:
        update(f"{self._planes_first} {self._scale};".encode())
        update(self._rows.tobytes())
        for part in self._parts:
            update(f"{part.dtype} {part.shape};".encode())
            step = max(BLOCK // max(part[:1].nbytes, 1), 1)
            for start in range(0, len(part), step):
                update(np.ascontiguousarray(part[start : start + step]).tobytes())

    def pick(self, numbers: Sequence[int]) -> "Arrays":
        rows = self._rows[np.asarray(numbers, dtype=np.int64)]
        return Arrays(self._parts, planes_first=self._planes_first, scale=self._scale, rows=rows.tolist())
