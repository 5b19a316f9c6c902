"""Pixels and thumbnails written one after the other, so that a full disk is an error and not a crash of the process."""

import os
import secrets
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.core.serialization import replace
from sgoif.images.pixels import IMAGES, MEASURED, PIXELS, THUMBS
from sgoif.images.reading import Reading

HEADER = 128
ROWS_AT_ONCE = 1024


class PixelFile:
    """A .npy file that grows by one image at a time. It starts grey and turns to colour when the first colour comes."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._size = folder, size
        self.channels, self.count = 1, 0
        self.lengths: list[int] = []
        self._finished: list[str] = []
        self._pixels = _part(folder, PIXELS)
        try:
            self._thumbs = _part(folder, THUMBS)
            self._pixels.write(b"\0" * HEADER)
        except BaseException:
            self.discard()
            raise

    def append(self, reading: Reading) -> None:
        """Write the pixels and the thumbnail of the next image."""
        pixels = reading.pixels
        if len(pixels) > self.channels:
            self._turn_to_colour()
        if len(pixels) < self.channels:
            pixels = np.broadcast_to(pixels, (self.channels, self._size, self._size))
        self._pixels.write(pixels.tobytes())
        self._thumbs.write(reading.thumbnail)
        self.lengths.append(len(reading.thumbnail))
        self.count += 1

    def _turn_to_colour(self) -> None:
        self._pixels.flush()
        new = _part(self._folder, PIXELS)
        try:
            new.write(b"\0" * HEADER)
            row = self._size * self._size
            self._pixels.seek(HEADER)
            while block := self._pixels.read(ROWS_AT_ONCE * row):
                new.write(np.repeat(np.frombuffer(block, dtype=np.uint8).reshape(-1, 1, row), 3, axis=1).tobytes())
        except BaseException:
            _remove(new)
            raise
        _remove(self._pixels)
        self._pixels, self.channels = new, 3

    def finish(self) -> dict[str, int]:
        """Complete both files, move them into place and return their sizes."""
        shape = (self.count, self.channels, self._size, self._size)
        self._pixels.seek(0)
        self._pixels.write(_header(shape))
        sizes: dict[str, int] = {}
        for file, name in ((self._pixels, PIXELS), (self._thumbs, THUMBS)):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            sizes[name] = os.stat(file.name).st_size
            replace(file.name, self._folder / name)
            self._finished.append(name)
        return sizes

    def discard(self) -> None:
        """Remove what was written so far, also where it is already in place."""
        for file in (self._pixels, getattr(self, "_thumbs", None)):
            if file is not None:
                _remove(file)
        for name in self._finished:
            (self._folder / name).unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed run left behind."""
    for name in (PIXELS, THUMBS, MEASURED, IMAGES):
        for path in folder.glob(f".{name}.*.part"):
            path.unlink(missing_ok=True)


def _part(folder: Path, name: str) -> Any:
    return open(folder / f".{name}.{secrets.token_hex(4)}.part", "x+b", buffering=1 << 20)


def _remove(file: Any) -> None:
    with suppress(OSError):  # where the last buffer no longer fits on the disk
        file.close()
    Path(file.name).unlink(missing_ok=True)


def _header(shape: tuple[int, ...]) -> bytes:
    """Header of a version 1 .npy file, padded to a fixed length so that it can be written last."""
    text = repr({"descr": "|u1", "fortran_order": False, "shape": shape})
    start = np.lib.format.magic(1, 0) + struct.pack("<H", HEADER - 10)
    return start + text.ljust(HEADER - 11).encode("latin-1") + b"\n"
