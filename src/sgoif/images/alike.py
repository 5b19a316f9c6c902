"""Images that are nearly the same: one picture encoded twice, at two sizes, a little brighter, or taken twice.

Every image is looked at twice, both times without its mean colour and its contrast: shrunk to 8 × 8 averages, and at
the size of the array. Two images are alike where both distances are small *for this data set*: below a share of what
lies between an image and its nearest neighbour in a random quarter of the set, where few copies meet. So handwritten
digits, which all resemble each other, have to be much closer than photographs. Flat images are left out, since without
their colour nothing is left to compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SIDE = 8
"""Averages a side of the first look."""
FLAT = 8.0
"""Contrast (standard deviation, of 255 levels) below which an image is not compared."""
COARSE, FINE = (0.22, 0.2), (0.45, 0.45)
"""The share of a neighbour's distance up to which images are alike, and the most that it may come to: first look,
second look. Distances lie between 0 and 2."""
QUARTER = 4
DIRECTIONS = 16
"""Principal directions of the first look in which candidates are sought."""
LEAST, MOST = 8, 200_000
"""Images below which a set has no neighbours to speak of, and above which the search would take minutes."""
CHUNK = 1024


def alike(images: Array, rows: Sequence[int] | None = None) -> list[tuple[int, ...]]:
    """Groups of rows whose images, uint8 [n, C, H, W], are nearly the same; `rows` are the ones to compare."""
    chosen = np.arange(len(images)) if rows is None else np.asarray(rows, dtype=np.int64)
    if not LEAST <= len(chosen) <= MOST:
        return []
    looks, contrast = _first_look(images, chosen)
    clear = contrast >= FLAT
    chosen, looks = chosen[clear], looks[clear]
    if len(chosen) < LEAST:
        return []
    sample = np.random.default_rng(0).permutation(len(chosen))[: max(LEAST, len(chosen) // QUARTER)]
    nearest, distance = _nearest(looks[sample])
    finer = _apart(images, chosen[sample], chosen[sample][nearest])
    coarse, fine = (
        min(share * float(np.median(found)), most) for found, (share, most) in ((distance, COARSE), (finer, FINE))
    )
    pairs = [(first, second) for first, second in _close(looks, coarse)]
    if not pairs:
        return []
    first, second = (chosen[np.concatenate(part)] for part in zip(*pairs, strict=True))
    same = _apart(images, first, second) <= fine
    return _groups(first[same].tolist(), second[same].tolist())


def _first_look(images: Array, rows: Array) -> tuple[Array, Array]:
    parts, contrasts = [], []
    for chunk in _chunks(rows):
        size = images.shape[-1]
        edges = np.linspace(0, size, min(SIDE, size) + 1).round().astype(np.int64)
        sums = np.add.reduceat(np.add.reduceat(images[chunk].astype(np.float32), edges[:-1], 2), edges[:-1], 3)
        widths = np.diff(edges).astype(np.float32)
        units, contrast = _units(sums / (widths[:, None] * widths))
        parts.append(units)
        contrasts.append(contrast)
    return np.concatenate(parts), np.concatenate(contrasts)


def _units(images: Array) -> tuple[Array, Array]:
    """Images as vectors of length one around their mean colour, and their contrast."""
    vectors = (images - images.mean((2, 3), keepdims=True)).reshape(len(images), -1)
    lengths = np.linalg.norm(vectors, axis=1)
    return vectors / np.maximum(lengths, 1e-6)[:, None], lengths / np.sqrt(vectors.shape[1])


def _apart(images: Array, first: Array, second: Array) -> Array:
    """Distances at the size of the array."""
    found = [
        np.linalg.norm(_units(images[a].astype(np.float32))[0] - _units(images[b].astype(np.float32))[0], axis=1)
        for a, b in zip(_chunks(first), _chunks(second), strict=True)
    ]
    return np.concatenate(found) if found else np.zeros(0)


def _nearest(units: Array) -> tuple[Array, Array]:
    """The nearest other row of each, and how far it is."""
    places, likeness = [], []
    for start in range(0, len(units), CHUNK):
        products = units[start : start + CHUNK] @ units.T
        rows = np.arange(len(products))
        products[rows, start + rows] = -2
        places.append(products.argmax(1))
        likeness.append(products[rows, places[-1]])
    return np.concatenate(places), np.sqrt(np.maximum(0, 2 - 2 * np.concatenate(likeness)))


def _close(units: Array, limit: float) -> Iterator[tuple[Array, Array]]:
    """All pairs of rows that are at most so far apart. In a few directions they are not farther, which leaves few."""
    centred = units - units.mean(0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    short = centred @ directions[:, : -DIRECTIONS - 1 : -1]
    order = np.argsort(short[:, 0], kind="stable")
    short = np.ascontiguousarray(short[order])
    lengths = (short**2).sum(1)
    for start in range(0, len(short), CHUNK):
        block = slice(start, min(start + CHUNK, len(short)))
        end = int(np.searchsorted(short[:, 0], short[block.stop - 1, 0] + limit, side="right"))
        squares = lengths[block, None] + lengths[start:end] - 2 * (short[block] @ short[start:end].T)
        a, b = np.nonzero(np.triu(squares <= limit**2 + 1e-5, 1))
        first, second = order[start + a], order[start + b]
        near = np.linalg.norm(units[first] - units[second], axis=1) <= limit
        yield first[near], second[near]


def _groups(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, ...]]:
    """Rows that hang together, each group and all of them in order."""
    leader: dict[int, int] = {}

    def find(row: int) -> int:
        while leader.setdefault(row, row) != row:
            leader[row] = leader[leader[row]]
            row = leader[row]
        return row

    for a, b in zip(first, second, strict=True):
        a, b = sorted((find(a), find(b)))
        leader[b] = a
    groups: dict[int, list[int]] = {}
    for row in sorted(leader):
        groups.setdefault(find(row), []).append(row)
    return sorted(map(tuple, groups.values()))


def _chunks(rows: Array) -> Iterator[Array]:
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]
