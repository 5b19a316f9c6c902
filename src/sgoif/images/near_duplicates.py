"""Images that are nearly the same: one picture encoded twice, at two sizes, a little brighter, or taken twice.

Every image is looked at twice, both times without its mean colour and its contrast: shrunk to 8 × 8 averages, and at
the size of the array. Two images are alike where both distances are small *for this data set*: below a share of what
lies between an image and its nearest neighbour in a random quarter of the set, where few copies meet. So handwritten
digits, which all resemble each other, have to be much closer than photographs. Flat images are left out, since without
their colour nothing is left to compare.
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
DIRECTIONS = 16
"""Principal directions of the first look in which candidates are sought."""
LEAST, MOST = 8, 200_000
"""Images below which a set has no neighbours to speak of, and above which the search would take minutes."""
MOST_CANDIDATES = 200
"""Candidates for each image, not counting those of one group, from which on all images resemble each other too much."""
AT_ONCE = 2**14
"""Candidates that are looked at before those of one group are left out again."""
CELLS = 2**22
"""Numbers that are worked on at once, however many images there are and whatever their size."""


def find_near_duplicates(images: Array, rows: Sequence[int] | None = None) -> list[tuple[int, ...]]:
    """Groups of rows whose images, uint8 [n, C, H, W], are nearly the same; `rows` are the ones to compare."""
    chosen = np.arange(len(images)) if rows is None else np.asarray(rows, dtype=np.int64)
    if not LEAST <= len(chosen) <= MOST:
        return []
    thumbnails, contrast = _thumbnails(images, chosen)
    clear = contrast >= FLAT
    chosen, thumbnails = chosen[clear], thumbnails[clear]
    if len(chosen) < LEAST:
        return []
    sample = np.random.default_rng(0).permutation(len(chosen))[: max(LEAST, len(chosen) // QUARTER)]
    nearest, distance = _nearest(thumbnails[sample])
    finer = _apart(images, chosen[sample], chosen[sample][nearest])
    coarse, fine = (
        min(share * float(np.median(found)), most) for found, (share, most) in ((distance, COARSE), (finer, FINE))
    )
    leader, left = np.arange(len(chosen)), MOST_CANDIDATES * len(chosen)
    for pairs in _candidates(thumbnails, coarse):
        pairs = pairs[:, leader[pairs[0]] != leader[pairs[1]]]
        left -= pairs.shape[1]
        if left < 0:
            return []
        pairs = pairs[:, _differences(thumbnails, pairs) <= coarse]
        pairs = pairs[:, _apart(images, *chosen[pairs]) <= fine]
        _join(leader, pairs)
    return [tuple(chosen[leader == number].tolist()) for number in np.flatnonzero(np.bincount(leader) > 1)]


def _thumbnails(images: Array, rows: Array) -> tuple[Array, Array]:
    """The images as 8 × 8 averages, and their contrast."""
    parts, contrasts = [], []
    size = images.shape[-1]
    edges = np.linspace(0, size, min(SIDE, size) + 1).round().astype(np.int64)
    widths = np.diff(edges).astype(np.float32)
    for chunk in _chunks(rows, images[0].size):
        sums = np.add.reduceat(np.add.reduceat(images[chunk].astype(np.float32), edges[:-1], 2), edges[:-1], 3)
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

    def between(one: Array, other: Array) -> Array:
        left, right = (_units(images[rows].astype(np.float32))[0] for rows in (one, other))
        return np.asarray(np.linalg.norm(left - right, axis=1))

    return _over(np.stack([first, second]), images[0].size, between)


def _nearest(units: Array) -> tuple[Array, Array]:
    """The nearest other row of each, and how far it is."""
    places, likeness = [], []
    for chunk in _chunks(np.arange(len(units)), len(units)):
        products = units[chunk] @ units.T
        rows = np.arange(len(products))
        products[rows, chunk] = -2
        places.append(products.argmax(1))
        likeness.append(products[rows, places[-1]])
    return np.concatenate(places), np.sqrt(np.maximum(0, 2 - 2 * np.concatenate(likeness)))


def _candidates(units: Array, limit: float) -> Iterator[Array]:
    """All pairs of rows, [2, n] at a time, that are at most so far apart in a few directions, and some more."""
    centred = units - units.mean(0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    short = centred @ directions[:, : -DIRECTIONS - 1 : -1]
    order = np.argsort(short[:, 0], kind="stable")
    short = np.ascontiguousarray(short[order])
    lengths = (short**2).sum(1)
    for chunk in _chunks(np.arange(len(short)), len(short)):
        start, last = int(chunk[0]), int(chunk[-1])
        end = int(np.searchsorted(short[:, 0], short[last, 0] + limit, side="right"))
        squares = lengths[chunk, None] + lengths[start:end] - 2 * (short[chunk] @ short[start:end].T)
        a, b = np.nonzero(np.triu(squares <= limit**2 + 1e-5, 1))
        for some in _chunks(np.arange(len(a)), max(1, CELLS // AT_ONCE)):
            yield np.stack([order[start + a[some]], order[start + b[some]]])


def _differences(units: Array, pairs: Array) -> Array:
    """How far the rows of each pair are apart."""
    return _over(pairs, units[0].size, lambda one, other: np.linalg.norm(units[one] - units[other], axis=1))


def _join(leader: Array, pairs: Array) -> None:
    """Let the rows of each pair, and all that follow them, have one leader: the lowest row."""
    for a, b in pairs.T.tolist():
        low, high = sorted((leader[a], leader[b]))
        if low != high:
            leader[leader == high] = low


def _chunks(rows: Array, width: int) -> Iterator[Array]:
    """Rows in order, some at a time: so many that `CELLS` numbers are not exceeded with `width` for each."""
    step = max(1, CELLS // width)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _over(pairs: Array, width: int, between: Callable[[Array, Array], Array]) -> Array:
    """What lies between the rows of each pair, [2, n]."""
    return np.concatenate([np.zeros(0), *(between(*pairs[:, c]) for c in _chunks(np.arange(pairs.shape[1]), width))])
