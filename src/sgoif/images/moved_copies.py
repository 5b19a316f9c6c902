"""Copies of which a border was cut off, or that were mirrored.

Each image is looked at as it is and mirrored. A copy that lost a border is not as near as one that was encoded anew,
but most often among the nearest. Of these few candidates those are left that are near once a move and a scale are taken
out, to the first order (Simard et al. 1993). One picture is then laid over the other (`registration`), and copies are
alike in colours and in their slopes: smooth pictures, such as an object on a white table, all have like colours. How
alike is a share of what lies between images that are laid over each other and are no copies, so that strokes of a pen,
which can all be laid over each other, have to be much nearer than photographs.
"""

import numpy as np

from sgoif.core.types import Array
from sgoif.images.likeness import candidates, chunks, differences, directions, shrunk
from sgoif.images.registration import registered

SIDE = 16
"""Averages a side when one picture is laid over the other; smaller images are not looked at."""
QUERIES = 2**12
"""Images whose principal directions are those of all."""
NEAREST, WINDOW = 2, 16
"""Candidates of each image, as it is and mirrored, and how many of a cell are looked at after each."""
TANGENT = 0.5
"""The share of what usually lies between an image and its nearest neighbour up to which candidates are left when a move
is taken out."""
RARE, SHARE = 0.05, 0.35
"""Copies are nearer, when one is laid over the other, than this share of what all but a twentieth of strangers keep."""
FEWEST, SOME = 50, 512
"""Pairs of strangers of which a twentieth tells anything, and those that are laid over each other."""
FAR, MANY = 1.2, 16
"""Side of a cell of the grid in distances of a neighbour, and candidates of each image that are kept at once."""
SMALL = 1e-6
"""Keeps slopes of flat images from dividing by zero."""


def find_moved(images: Array, rows: Array, units: Array, strangers: Array, usual: float, leader: Array) -> Array:
    """Pairs, [2, n], of positions in `rows` whose images are moved or mirrored copies.

    `units` are their 8 × 8 averages, `strangers` pairs of neighbours that are no copies, `usual` is how far an image is
    from its nearest, and what shares a `leader` is known already.
    """
    channels = images.shape[1]
    cells = round((units.shape[1] / channels) ** 0.5)
    if images.shape[-1] < SIDE or cells < 3 or strangers.shape[1] < FEWEST:
        return np.zeros((2, 0), np.int64)
    planes = units.reshape(-1, channels, cells, cells)
    pairs = _nearest(planes, usual, leader)
    pairs = pairs[:, _tangent(planes, pairs) <= TANGENT * usual]
    far = _laid_over(images, rows, strangers[:, :SOME])
    near = (_laid_over(images, rows, pairs) <= SHARE * np.quantile(far, RARE, axis=0)).all(1)
    return pairs[:, near] % len(rows)


def _nearest(planes: Array, usual: float, leader: Array) -> Array:
    """Of each image the nearest others, as they are and mirrored, that are nearer than usual: of each pair the first as
    it is, and of the second, where it is mirrored, its position plus the number of images.
    """
    count = len(planes)
    some = planes[np.random.default_rng(0).permutation(count)[:QUERIES]]
    across = directions(np.concatenate([some, some[..., ::-1]]).reshape(2 * len(some), -1)).T
    mirrored = across.reshape(-1, *planes.shape[1:])[..., ::-1].reshape(across.shape)
    short = np.concatenate([planes.reshape(count, -1) @ ways.T for ways in (across, mirrored)])
    found, far = [np.zeros((2, 0), np.int64)], [np.zeros(0)]
    for first, second in candidates(short, FAR * usual, WINDOW):
        one, other = np.minimum(first, second), np.maximum(first, second)
        new = (one < count) & (leader[one % count] != leader[other % count])
        pairs = np.stack([one[new], other[new]])
        between = differences(short, pairs)
        found.append(pairs[:, between < usual])
        far.append(between[between < usual])
        if sum(map(len, far)) > MANY * len(short):
            found, far = [list(part) for part in zip(_fewest(found, far, count), strict=True)]
    return _fewest(found, far, count)[0]


def _fewest(found: list[Array], far: list[Array], count: int) -> tuple[Array, Array]:
    """Each pair once, if it is among the nearest of one of the two."""
    pairs, between = np.concatenate(found, axis=1), np.concatenate(far)
    _, once = np.unique(pairs[0] * (2 * count) + pairs[1], return_index=True)
    pairs, between = pairs[:, once], between[once]
    kept = np.zeros(len(between), dtype=bool)
    mirrored = pairs[1] >= count
    for own in pairs % count:
        key = 2 * own + mirrored
        order = np.lexsort((between, key))
        place = np.arange(len(order)) - np.searchsorted(key[order], key[order])
        kept[order[place < NEAREST]] = True
    return pairs[:, kept], between[kept]


def _tangent(planes: Array, pairs: Array) -> Array:
    """How far images are apart but for a move and a scale, to the first order."""
    count, cells = len(planes), planes.shape[-1]
    line = (np.arange(cells, dtype=np.float32) + 0.5) / cells * 2 - 1
    parts = [np.zeros(0)]
    for part in chunks(np.arange(pairs.shape[1]), 12 * planes[0].size):
        one, other = planes[pairs[0, part]], _mirrored(planes[pairs[1, part] % count], pairs[1, part] >= count)
        down, across = np.gradient(one, axis=(2, 3))
        slopes = np.stack([across, across * line, down, down * line[:, None]], axis=1)
        columns = np.concatenate([slopes - slopes.mean((3, 4), keepdims=True), one[:, None]], axis=1)
        columns = columns.reshape(*columns.shape[:2], -1)
        normal = columns @ columns.transpose(0, 2, 1) + SMALL * np.eye(5, dtype=np.float32)
        along = columns @ other.reshape(len(other), -1, 1)
        parts.append(np.sqrt(np.maximum(0, 1 - (along * np.linalg.solve(normal, along)).sum((1, 2)))))
    return np.concatenate(parts)


def _laid_over(images: Array, rows: Array, pairs: Array) -> Array:
    """How far colours and slopes are apart when one image is laid over the other, the nearer way round; positions
    beyond `rows` are of mirrored images.
    """
    parts = [np.zeros((0, 2))]
    for part in chunks(np.arange(pairs.shape[1]), 2 * images[0].size):
        one, other = (shrunk(images[rows[at % len(rows)]], SIDE) for at in pairs[:, part])
        other = _mirrored(other, pairs[1, part] >= len(rows))
        parts.append(np.minimum(registered(one, other), registered(other, one)))
    return np.concatenate(parts)


def _mirrored(images: Array, chosen: Array) -> Array:
    """Images of which some are mirrored."""
    return np.where(chosen[:, None, None, None], images[..., ::-1], images)
