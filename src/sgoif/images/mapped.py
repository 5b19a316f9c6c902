"""Rows of an array on disk, of which memory holds few at a time, however many are looked at."""

import mmap
from typing import Any

import numpy as np

from sgoif.core.types import Array

MOST = 2**26
"""Bytes that are read before what is mapped is let go; the system keeps it as long as it has room."""


class Mapped:
    """A mapped array whose rows are read as those of an array are, and do not stay in the memory of the process."""

    def __init__(self, array: Array) -> None:
        self._array, self._read = array, 0
        self.shape: tuple[int, ...] = array.shape

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, rows: Any) -> Array:
        found = np.array(self._array[rows])
        self._read += found.nbytes
        base: Any = self._array.base
        if self._read > MOST and isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            base.madvise(mmap.MADV_DONTNEED)
            self._read = 0
        return found
