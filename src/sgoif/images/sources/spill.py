"""Arrays out of compressed files: small ones in memory, large ones in a nameless file on disk."""

import math
import tempfile
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from sgoif.core.serialization import DENSEST, LARGE
from sgoif.core.types import Array

IN_MEMORY = 1 << 28
BLOCK = 1 << 22


def stored(
    stream: IO[bytes] | Any,
    dtype: np.dtype[Any],
    shape: Sequence[int],
    *,
    fortran: bool = False,
    packed: int | None = None,
) -> Array:
    """The array whose values follow in a stream; `EOFError` where there are too few of them.

    `packed` is the size of the compressed file: what would grow out of all proportion is not begun with.
    """
    order, size = ("F" if fortran else "C"), math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0:
        raise ValueError(f"an array of the shape {list(shape)}")
    if packed is not None and size > max(LARGE, DENSEST * packed):
        raise ValueError(f"its {packed:,} bytes would unpack to {size:,}, which no such file needs")
    if size <= IN_MEMORY:
        values = _exactly(stream, size)
        return np.frombuffer(values, dtype=dtype).reshape(shape, order=order)  # type: ignore[call-overload,no-any-return]
    with tempfile.TemporaryFile(prefix="sgoif-") as file:
        for start in range(0, size, BLOCK):
            file.write(_exactly(stream, min(BLOCK, size - start)))
        file.flush()
        # The mapping keeps the contents alive after the file is closed.
        return np.memmap(file, dtype=dtype, mode="r", shape=tuple(shape), order=order)  # type: ignore[call-overload,no-any-return]


def _exactly(stream: Any, size: int) -> bytes:
    blocks: list[bytes] = []
    missing = size
    while missing:
        block = stream.read(min(missing, BLOCK))
        if not block:
            raise EOFError(f"{missing:,} bytes are missing at the end")
        blocks.append(block)
        missing -= len(block)
    return b"".join(blocks)
