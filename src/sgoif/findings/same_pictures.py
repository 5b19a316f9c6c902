"""Which rows show the same picture, by what was measured of them; checks ask `Examined`, which finds out once."""

from collections.abc import Sequence

import numpy as np

from sgoif.core.types import Array
from sgoif.images.measurements import CELLS, Measurements

FLAT, LEAST = 8.0, 8
"""Levels of contrast, of 255, and number of images below which no grey copies are looked for."""
BITS = 3
"""By which the hash of a grey copy may differ."""
SHARE = 0.22
"""Of what lies between an image and its nearest neighbour, as in `sgoif.images.near_duplicates`."""
SAMPLE, MOST_CANDIDATES = 1000, 20
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def exact_copies(measured: Measurements) -> list[list[int]]:
    """Groups of rows with the same pixels, by their first row."""
    if not len(measured):
        return []
    content = np.ascontiguousarray(measured.content).view(np.dtype((np.void, measured.content.shape[1])))[:, 0]
    _, first, group = np.unique(content, return_index=True, return_inverse=True)
    order = np.argsort(first[group], kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(first[group][order])) + 1)
    return [rows.tolist() for rows in groups if len(rows) > 1]


def near_copies(measured: Measurements, near: Sequence[Sequence[int]], exact: Sequence[list[int]]) -> list[list[int]]:
    """Groups of rows that are nearly the same picture: those of `near` and grey ones, with the exact copies of each."""
    same = {row: rows for rows in exact for row in rows}
    group_of: dict[int, set[int]] = {}
    for pair in (*near, *grey_copies(measured)):
        rows = {copy for row in pair for copy in same.get(row, [row])}
        rows = rows.union(*(group_of.get(row, ()) for row in rows))
        group_of |= dict.fromkeys(rows, rows)
    groups = {min(rows): rows for rows in group_of.values()}
    return [sorted(rows) for _, rows in sorted(groups.items())]


def grey_copies(measured: Measurements) -> list[list[int]]:
    """Pairs of a grey and a coloured image that are the same picture but for that.

    Their perceptual hashes differ by 3 bits at most, so that one of four parts is equal, and their thumbnails without
    colour are as near as those of other near copies have to be. The hashes of 285 of 300 images of CIFAR-10, and of 265
    of 300 textures, were so near to those of their grey copies; in CIFAR-10 no other image's was nearer than 6 bits.
    """
    clear = np.asarray(measured.contrast) >= FLAT / 255
    grey, coloured = np.flatnonzero(clear & measured.grey), np.flatnonzero(clear & ~measured.grey)
    if not len(grey) or len(grey) + len(coloured) < LEAST:
        return []
    parts = np.ascontiguousarray(measured.hash, dtype="<u8").view("<u2").reshape(-1, 4)
    found = []
    for part in parts.T:
        order = coloured[np.argsort(part[coloured], kind="stable")]
        start, end = (np.searchsorted(part[order], part[grey], side) for side in ("left", "right"))
        counts = end - start
        if counts.sum() > MOST_CANDIDATES * len(parts):  # all resemble each other too much
            return []
        place = np.arange(counts.sum()) + np.repeat(start - np.cumsum(counts) + counts, counts)
        found.append(np.stack([np.repeat(grey, counts), order[place]], 1))
    pairs = np.unique(np.concatenate(found), axis=0)
    bits = np.ascontiguousarray(measured.hash, dtype="<u8")[pairs]
    apart = np.unpackbits((bits[:, :1] ^ bits[:, 1:]).view(np.uint8), axis=1).sum(1)
    pairs = pairs[apart <= BITS]
    some = np.random.default_rng(0).permutation(np.flatnonzero(clear))[:SAMPLE]
    units = _shades(measured, some)
    alike = units @ units.T
    np.fill_diagonal(alike, -1)
    usual = float(np.median(np.sqrt(np.maximum(0, 2 - 2 * alike.max(1)))))
    near = np.linalg.norm(_shades(measured, pairs[:, 0]) - _shades(measured, pairs[:, 1]), axis=1)
    found_pairs: list[list[int]] = pairs[near <= SHARE * usual].tolist()
    return found_pairs


def _shades(measured: Measurements, rows: Array) -> Array:
    """Thumbnails without colour, their mean and their contrast, as vectors of length one."""
    shades = (measured.thumbnail[rows].astype(np.float32) @ LUMA).reshape(-1, CELLS * CELLS)
    shades -= shades.mean(1, keepdims=True)
    return np.asarray(shades / np.maximum(np.linalg.norm(shades, axis=1, keepdims=True), 1e-6))
