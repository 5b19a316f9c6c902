"""Images that are nearly the same: one picture encoded twice, at two sizes, a little brighter, or taken twice.

Every image is looked at twice, both times without its mean colour and its contrast: shrunk to 8 × 8 averages, and at
the size of the array. Two images are alike where both distances are small *for this data set*: below a share of what
lies between an image and its nearest neighbour in a random quarter of the set, where few copies meet. So handwritten
digits, which all resemble each other, have to be much closer than photographs. Flat images are left out, since without
their colour nothing is left to compare. A mirrored or a turned copy is another image.

Not all pairs are compared. In the principal directions of the first look a grid is laid several times, each time moved
at random, and images that share a cell are candidates: alike ones do in some grid but for less than one pair in a
hundred, others hardly ever. So the time grows with the number of images, not with its square.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from sgoif.core.types import Array

SIDE = 8
"""Averages a side of the first look."""
FLAT = 8.0
"""Contrast (standard deviation, of 255 levels) below which an image is not compared."""
COARSE, FINE = (0.22, 0.2), (0.45, 0.45)
"""The share of a neighbour's distance up to which images are alike, and the most that it may come to: first look,
second look. Distances lie between 0 and 2."""
QUARTER = 4
QUERIES = 2**12
"""Images of the quarter whose neighbours are sought."""
DIRECTIONS, GRIDS = 16, 12
"""Principal directions of the first look in which candidates are sought, and how often a grid is laid."""
WIDTH, NARROWEST = 2.0, 1e-3
"""Side of a cell of the grid, in limits of the first look, and the least that it may come to."""
WINDOW = 64
"""Images of one cell after each, in the order of some direction, that are its candidates."""
LEAST, MOST = 8, 1_000_000
"""Images below which a set has no neighbours to speak of, and above which they would fill the memory."""
MOST_CANDIDATES = 200
"""Candidates for each image, not counting those of one group, from which on all images resemble each other too much."""
CELLS = 2**22
"""Numbers that are worked on at once, however many images there are and whatever their size."""


def find_near_duplicates(images: Array, rows: Sequence[int] | None = None) -> list[tuple[int, ...]]:
    """Groups of rows whose images, uint8 [n, C, H, W], are nearly the same; `rows` are the ones to compare."""
    chosen = np.arange(len(images)) if rows is None else np.asarray(rows, dtype=np.int64)
    if not LEAST <= len(chosen) <= MOST:
        return []
    chosen, thumbnails = _thumbnails(images, chosen)
    if len(chosen) < LEAST:
        return []
    sample = np.random.default_rng(0).permutation(len(chosen))[: max(LEAST, len(chosen) // QUARTER)]
    nearest, distance = _nearest(thumbnails[sample])
    finer = _apart(images, chosen[sample[: len(nearest)]], chosen[sample[nearest]])
    coarse, fine = (
        min(share * float(np.median(found)), most) for found, (share, most) in ((distance, COARSE), (finer, FINE))
    )
    leader, left = np.arange(len(chosen)), MOST_CANDIDATES * len(chosen)
    short = thumbnails @ _directions(thumbnails[sample[:QUERIES]])
    for pairs in _candidates(short, max(WIDTH * coarse, NARROWEST)):
        pairs = pairs[:, leader[pairs[0]] != leader[pairs[1]]]
        pairs = pairs[:, _differences(short, pairs) <= coarse + 1e-5]
        left -= pairs.shape[1]
        if left < 0:
            return []
        pairs = pairs[:, _differences(thumbnails, pairs) <= coarse]
        pairs = pairs[:, _apart(images, *chosen[pairs]) <= fine]
        leader = _joined(leader, pairs)
    order = np.argsort(leader, kind="stable")
    groups = np.split(chosen[order], np.flatnonzero(np.diff(leader[order])) + 1)
    return [tuple(group.tolist()) for group in groups if len(group) > 1]


def _thumbnails(images: Array, rows: Array) -> tuple[Array, Array]:
    """The rows whose images are not flat, and these images as 8 × 8 averages."""
    kept: list[Array] = []
    count, size = 0, images.shape[-1]
    edges = np.linspace(0, size, min(SIDE, size) + 1).round().astype(np.int64)
    widths = np.diff(edges).astype(np.float32)
    found = np.empty((len(rows), images.shape[1] * len(widths) ** 2), np.float32)
    for chunk in _chunks(rows, images[0].size):
        sums = np.add.reduceat(np.add.reduceat(images[chunk].astype(np.float32), edges[:-1], 2), edges[:-1], 3)
        units, contrast = _units(sums / (widths[:, None] * widths))
        clear = contrast >= FLAT
        kept.append(chunk[clear])
        found[count : count + len(kept[-1])] = units[clear]
        count += len(kept[-1])
    return np.concatenate(kept), found[:count]


def _units(images: Array) -> tuple[Array, Array]:
    """Images as vectors of length one around their mean colour, and their contrast."""
    vectors = (images - images.mean((2, 3), keepdims=True)).reshape(len(images), -1)
    lengths = np.linalg.norm(vectors, axis=1)
    return vectors / np.maximum(lengths, 1e-6)[:, None], lengths / np.sqrt(vectors.shape[1])


def _apart(images: Array, first: Array, second: Array) -> Array:
    """Distances at the size of the array."""

    def between(one: Array, other: Array) -> Array:
        left, right = (_units(images[rows].astype(np.float32))[0] for rows in (one, other))
        return np.asarray(np.linalg.norm(left - right, axis=1))

    return _over(np.stack([first, second]), images[0].size, between)


def _nearest(units: Array) -> tuple[Array, Array]:
    """The nearest other row of each of the first rows, and how far it is."""
    places, likeness = [], []
    for chunk in _chunks(np.arange(len(units))[:QUERIES], len(units)):
        products = units[chunk] @ units.T
        rows = np.arange(len(products))
        products[rows, chunk] = -2
        places.append(products.argmax(1))
        likeness.append(products[rows, places[-1]])
    return np.concatenate(places), np.sqrt(np.maximum(0, 2 - 2 * np.concatenate(likeness)))


def _directions(units: Array) -> Array:
    """The principal directions, as columns, the first in front."""
    centred = units - units.mean(0)
    return np.asarray(np.linalg.eigh(centred.T @ centred)[1][:, : -DIRECTIONS - 1 : -1])


def _candidates(short: Array, width: float) -> Iterator[Array]:
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
        for step in range(1, min(WINDOW + 1, len(cell))):
            here = np.flatnonzero(cell[:-step] == cell[step:])
            if not len(here):
                break
            yield np.stack([order[here], order[here + step]])


def _differences(units: Array, pairs: Array) -> Array:
    """How far the rows of each pair are apart."""
    return _over(pairs, units[0].size, lambda one, other: np.linalg.norm(units[one] - units[other], axis=1))


def _joined(leader: Array, pairs: Array) -> Array:
    """Leaders after the rows of each pair, and all that follow them, got one: the lowest row."""
    while pairs.size:
        low, high = np.sort(leader[pairs], axis=0)
        np.minimum.at(leader, high, low)
        while (leader[leader] != leader).any():
            leader = leader[leader]
        pairs = pairs[:, leader[pairs[0]] != leader[pairs[1]]]
    return leader


def _chunks(rows: Array, width: int) -> Iterator[Array]:
    """Rows in order, some at a time: so many that `CELLS` numbers are not exceeded with `width` for each."""
    step = max(1, CELLS // width)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _over(pairs: Array, width: int, between: Callable[[Array, Array], Array]) -> Array:
    """What lies between the rows of each pair, [2, n]."""
    return np.concatenate([np.zeros(0), *(between(*pairs[:, c]) for c in _chunks(np.arange(pairs.shape[1]), width))])
