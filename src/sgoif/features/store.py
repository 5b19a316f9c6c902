"""Where features are kept: records of one size in a file that only ever grows.

A record is a checksum, the key of an image and its row of features. What is damaged fails its checksum and counts as
not there; a record that a kill has cut short is taken off before the next ones are written. Several processes may add
to a file: each locks it for as long as it writes.
"""

import os
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sgoif.core.locks import lock
from sgoif.core.types import Array
from sgoif.errors import SgoifError
from sgoif.images.errors import FULL
from sgoif.images.text import shown

KEY = 32
"""Bytes of a key."""
CHECK = 4
"""Bytes of the checksum, of key and row."""
BRIEFLY = 0.01
"""Seconds until a lock that another process holds is tried again."""


class CacheError(SgoifError, RuntimeError):
    """Features cannot be kept where they should be."""


def cache_folder() -> Path:
    """Where features are kept unless a folder is given: $SGOIF_CACHE, $XDG_CACHE_HOME/sgoif or ~/.cache/sgoif."""
    given, base = os.environ.get("SGOIF_CACHE"), os.environ.get("XDG_CACHE_HOME", "")
    try:
        if given:
            return Path(given).expanduser().absolute()
        return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "sgoif"
    except RuntimeError as error:
        raise CacheError("there is no home folder to keep features in; set SGOIF_CACHE to a folder") from error


@dataclass(frozen=True, eq=False)
class Stored:
    """What was in a file when it was read."""

    rows: Array
    """float16 [records, width], mapped from the file"""
    where: dict[bytes, int]
    """Key to number of row, of the records that are sound."""

    def of(self, keys: Sequence[bytes]) -> Array:
        """The rows of some keys; mapped, where they follow each other in the file."""
        try:
            numbers = np.array([self.where[key] for key in keys], dtype=np.int64)
        except KeyError as error:
            raise CacheError("features that were just kept are gone or damaged: run this again") from error
        if len(numbers) and (np.diff(numbers) == 1).all():
            return self.rows[numbers[0] : numbers[0] + len(numbers)]
        return self.rows[numbers]


class FeatureStore:
    """The file for one network and resolution below the folder of a cache."""

    def __init__(self, cache: Path, digest: str, size: int, width: int) -> None:
        self.file = cache / "features" / f"{digest}-{size}" / "records-1.bin"
        self._record = np.dtype([("check", "<u4"), ("key", f"V{KEY}"), ("row", "<f2", (width,))])

    def read(self) -> Stored:
        """All sound records; none where there is no file."""
        size = self._record.itemsize
        try:
            count = self.file.stat().st_size // size
            if not count:
                return Stored(np.empty((0, *self._record["row"].shape), np.float16), {})
            mapped = np.memmap(self.file, self._record, "r", shape=(count,))
        except FileNotFoundError:
            return Stored(np.empty((0, *self._record["row"].shape), np.float16), {})
        except OSError as error:
            raise self._error(error) from error
        where: dict[bytes, int] = {}
        content = mapped.view(np.uint8).data
        for number, start in enumerate(range(0, count * size, size)):
            if zlib.crc32(content[start + CHECK : start + size]) == int.from_bytes(
                content[start : start + CHECK], "little"
            ):
                where.setdefault(bytes(content[start + CHECK : start + CHECK + KEY]), number)
        return Stored(mapped["row"], where)

    def append(self, keys: Sequence[bytes], rows: Array) -> None:
        """Add records, all of them or none."""
        bodies = [key + row.astype("<f2").tobytes() for key, row in zip(keys, rows, strict=True)]
        content = b"".join(zlib.crc32(body).to_bytes(CHECK, "little") + body for body in bodies)
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("ab", buffering=0) as file:
                _wait_for_lock(file.fileno())
                size = os.fstat(file.fileno()).st_size
                whole = size - size % self._record.itemsize
                if whole != size:
                    file.truncate(whole)
                try:
                    while content:
                        content = content[file.write(content) :]
                except OSError:
                    file.truncate(whole)
                    raise
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> CacheError:
        folder = shown(self.file.parent)
        if error.errno in FULL:
            problem = f"the disk that holds {folder} is full: free some space, or set SGOIF_CACHE to another folder"
        else:
            reason = (error.strerror or str(error)).lower()
            problem = f"features cannot be kept in {folder} ({reason}): set SGOIF_CACHE to one that you may write to"
        return CacheError(f"{problem}, and run again. What was kept so far is still there and is used then")


def _wait_for_lock(file: int) -> None:
    """Others hold it only while they write a few records. Without locks, checksums tell what was written through."""
    while True:
        try:
            lock(file)
        except BlockingIOError:
            time.sleep(BRIEFLY)
        else:
            return
