"""What near copies are found by: averages of images without their mean colour and contrast, and which pairs to compare.

Not all pairs are compared. In the principal directions of the averages a grid is laid several times, each time moved at
random, and images that share a cell are candidates.
"""

from collections.abc import Callable, Iterator

import numpy as np

from sgoif.core.types import Array

FLAT = 8.0
"""Contrast (standard deviation, of 255 levels) below which an image is not compared."""
DIRECTIONS, GRIDS = 16, 12
"""Principal directions in which candidates are sought, and how often a grid is laid."""
WINDOW = 64
"""Images of one cell after each, in the order of some direction, that are its candidates."""
CELLS = 2**22
"""Numbers that are worked on at once, however many images there are and whatever their size."""


def averages(images: Array, rows: Array, side: int) -> tuple[Array, Array]:
    """The rows whose images are not flat, and these as vectors of length one of so many averages a side."""
    kept: list[Array] = []
    count = 0
    found = np.empty((len(rows), images.shape[1] * min(side, images.shape[-1]) ** 2), np.float32)
    for chunk in chunks(rows, images[0].size):
        vectors, contrast = units(shrunk(images[chunk], side))
        clear = contrast >= FLAT
        kept.append(chunk[clear])
        found[count : count + len(kept[-1])] = vectors[clear]
        count += len(kept[-1])
    return np.concatenate(kept), found[:count]


def shrunk(images: Array, side: int) -> Array:
    """Averages of square images, so many a side, float32; as they are where they have no more."""
    size = images.shape[-1]
    edges = np.linspace(0, size, min(side, size) + 1).round().astype(np.int64)
    widths = np.diff(edges).astype(np.float32)
    sums = np.add.reduceat(np.add.reduceat(images.astype(np.float32), edges[:-1], 2), edges[:-1], 3)
    return np.asarray(sums / (widths[:, None] * widths))


def units(images: Array) -> tuple[Array, Array]:
    """Images as vectors of length one around their mean colour, and their contrast."""
    vectors = (images - images.mean((2, 3), keepdims=True)).reshape(len(images), -1)
    lengths = np.linalg.norm(vectors, axis=1)
    return vectors / np.maximum(lengths, 1e-6)[:, None], lengths / np.sqrt(vectors.shape[1])


def apart(images: Array, first: Array, second: Array) -> Array:
    """Distances at the size of the array."""

    def between(one: Array, other: Array) -> Array:
        left, right = (units(images[rows].astype(np.float32))[0] for rows in (one, other))
        return np.asarray(np.linalg.norm(left - right, axis=1))

    return over(np.stack([first, second]), images[0].size, between)


def directions(units: Array) -> Array:
    """The principal directions, as columns, the first in front."""
    centred = units - units.mean(0)
    return np.asarray(np.linalg.eigh(centred.T @ centred)[1][:, : -DIRECTIONS - 1 : -1])


def candidates(short: Array, width: float, window: int = WINDOW) -> Iterator[Array]:
    """Pairs of rows, [2, n] at a time, that lie in one cell of a grid."""
    random = np.random.default_rng(0)
    dimensions = short.shape[1]
    for _ in range(GRIDS):
        moved, along = random.random(dimensions, np.float32), random.standard_normal(dimensions, np.float32)
        # A cell is known by a sum of its coordinates with random weights; that two share it is one chance in 2⁶⁴.
        weights = random.integers(1, 2**63, dimensions, dtype=np.uint64)
        cell = np.zeros(len(short), np.uint64)
        for column, start, weight in zip(short.T, moved, weights, strict=True):
            cell += np.floor(column / np.float32(width) + start).astype(np.int64).astype(np.uint64) * weight
        order = np.lexsort((short @ along, cell))
        cell = cell[order]
        for step in range(1, min(window + 1, len(cell))):
            here = np.flatnonzero(cell[:-step] == cell[step:])
            if not len(here):
                break
            yield np.stack([order[here], order[here + step]])


def differences(units: Array, pairs: Array) -> Array:
    """How far the rows of each pair are apart."""
    return over(pairs, units[0].size, lambda one, other: np.linalg.norm(units[one] - units[other], axis=1))


def chunks(rows: Array, width: int) -> Iterator[Array]:
    """Rows in order, some at a time: so many that `CELLS` numbers are not exceeded with `width` for each."""
    step = max(1, CELLS // width)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def over(pairs: Array, width: int, between: Callable[[Array, Array], Array]) -> Array:
    """What lies between the rows of each pair, [2, n]."""
    return np.concatenate([np.zeros(0), *(between(*pairs[:, c]) for c in chunks(np.arange(pairs.shape[1]), width))])
