"""Images that are nearly the same: one picture encoded twice, at two sizes, a little brighter, or taken twice.

Every image is looked at twice, both times without its mean colour and its contrast: shrunk to 8 × 8 averages, and at
the size of the array. Two images are alike where both distances are small *for this data set*: below a share of what
lies between an image and the nearest that is no copy in a random quarter of the set. So handwritten digits, which all
resemble each other, have to be much closer than photographs. Flat images are left out, since without their colour
nothing is left to compare. Copies that were cropped or mirrored are found by `moved_copies`; a turned one is another
image.

Not all pairs are compared. In the principal directions of the first look a grid is laid several times, each time moved
at random, and images that share a cell are candidates: alike ones do in some grid but for less than one pair in a
hundred, others hardly ever. So the time grows with the number of images, not with its square.
"""

from collections.abc import Sequence

import numpy as np

from sgoif.core.types import Array
from sgoif.images.likeness import apart, averages, candidates, chunks, differences, directions
from sgoif.images.moved_copies import find_moved

SIDE = 8
"""Averages a side of the first look."""
COARSE, FINE = (0.22, 0.2), (0.45, 0.45)
"""The share of a neighbour's distance up to which images are alike, and the most that it may come to: first look,
second look. Distances lie between 0 and 2."""
QUARTER = 4
QUERIES, NEIGHBOURS = 2**12, 16
"""Images of the quarter whose neighbours are sought, and how many."""
WIDTH, NARROWEST = 2.0, 1e-3
"""Side of a cell of the grid, in limits of the first look, and the least that it may come to."""
LEAST, MOST = 8, 1_000_000
"""Images below which a set has no neighbours to speak of, and above which they would fill the memory."""
MOST_CANDIDATES = 200
"""Candidates for each image, not counting those of one group, from which on all images resemble each other too much."""


def find_near_duplicates(images: Array, rows: Sequence[int] | None = None) -> list[tuple[int, ...]]:
    """Groups of rows whose images, uint8 [n, C, H, W], are nearly the same; `rows` are the ones to compare."""
    chosen = np.arange(len(images)) if rows is None else np.asarray(rows, dtype=np.int64)
    if not LEAST <= len(chosen) <= MOST:
        return []
    chosen, thumbnails = averages(images, chosen, SIDE)
    if len(chosen) < LEAST:
        return []
    sample = np.random.default_rng(0).permutation(len(chosen))[: max(LEAST, len(chosen) // QUARTER)]
    nearest, furthest, usual = _strangers(thumbnails[sample])
    queries = sample[: len(nearest)]
    finer = apart(images, chosen[queries], chosen[sample[nearest]])
    strangers = np.stack([queries, sample[furthest]])
    coarse, fine = (
        min(share * middle, most) for middle, (share, most) in ((usual, COARSE), (float(np.median(finer)), FINE))
    )
    leader, left = np.arange(len(chosen)), MOST_CANDIDATES * len(chosen)
    short = thumbnails @ directions(thumbnails[sample[:QUERIES]])
    for pairs in candidates(short, max(WIDTH * coarse, NARROWEST)):
        pairs = pairs[:, leader[pairs[0]] != leader[pairs[1]]]
        pairs = pairs[:, differences(short, pairs) <= coarse + 1e-5]
        left -= pairs.shape[1]
        if left < 0:
            return []
        pairs = pairs[:, differences(thumbnails, pairs) <= coarse]
        pairs = pairs[:, apart(images, *chosen[pairs]) <= fine]
        leader = _joined(leader, pairs)
    leader = _joined(leader, find_moved(images, chosen, thumbnails, strangers, usual, leader))
    order = np.argsort(leader, kind="stable")
    groups = np.split(chosen[order], np.flatnonzero(np.diff(leader[order])) + 1)
    return [tuple(group.tolist()) for group in groups if len(group) > 1]


def _strangers(units: Array) -> tuple[Array, Array, float]:
    """Of each of the first rows the nearest other that is no copy of it, one further off, and how far the first are.

    What is a copy depends on how far strangers are. So one that is surely too large is taken for that at first, the
    distance to a neighbour so far off that the others may all be copies, and the next is what is left with it.
    """
    count = min(NEIGHBOURS, len(units) - 1)
    places, likeness = [], []
    for chunk in chunks(np.arange(len(units))[:QUERIES], len(units)):
        products = units[chunk] @ units.T
        rows = np.arange(len(products))[:, None]
        products[rows[:, 0], chunk] = -2
        near = np.argpartition(-products, count - 1, axis=1)[:, :count]
        near = near[rows, np.argsort(-products[rows, near], axis=1, kind="stable")]
        places.append(near)
        likeness.append(products[rows, near])
    place, far = np.concatenate(places), np.sqrt(np.maximum(0, 2 - 2 * np.concatenate(likeness)))
    usual, before = float(np.median(far[:, -1])), np.inf
    first = np.zeros(len(far), np.int64)
    while usual < before:
        first = np.minimum((far <= COARSE[0] * usual).sum(1), count - 1)
        usual, before = float(np.median(np.take_along_axis(far, first[:, None], 1))), usual
    return np.take_along_axis(place, first[:, None], 1)[:, 0], place[:, -1], usual


def _joined(leader: Array, pairs: Array) -> Array:
    """Leaders after the rows of each pair, and all that follow them, got one: the lowest row."""
    while pairs.size:
        low, high = np.sort(leader[pairs], axis=0)
        np.minimum.at(leader, high, low)
        while (leader[leader] != leader).any():
            leader = leader[leader]
        pairs = pairs[:, leader[pairs[0]] != leader[pairs[1]]]
    return leader
