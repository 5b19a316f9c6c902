"""What the detectors by distance share: an exact search for nearest neighbours, random parts of the bank, its layers.

The search takes a chunk of queries at a time, so that about 64 MiB of distances exist at once whatever the number of
points. For points p and a query q, both moved by the mean of the points, which no distance notices,

    ‖q − p‖² − ‖q‖² = ‖p‖² − 2 q·p

picks the neighbours by one matrix product. That difference of large numbers loses digits where the distance is small,
so the distances to the points picked are then computed anew from q − p.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.errors import SettingError
from sgoif_bench.ood.detector import Bank

Metric = Literal["euclidean", "cosine"]
CHUNK_BYTES = 2**26
SAME = 1e-2
"""Relative difference up to which two layers are one: more than rounding in half precision makes, far less than a layer
of the network does."""


class Found(NamedTuple):
    """Neighbours of every query, best first."""

    values: Tensor
    """[n, k]"""
    rows: Tensor
    """Which of the points they are, [n, k]."""


def unit(vectors: Tensor) -> Tensor:
    """Every row divided by its length; a row of zeros stays."""
    return F.normalize(vectors, dim=1)


class Neighbours:
    """Points [N, D] among which neighbours are looked for.

    With `cosine` points and queries are brought to unit length first; the distance is then √(2 − 2 cos).
    """

    def __init__(self, points: Tensor, metric: Metric = "euclidean") -> None:
        self.metric = metric
        points = unit(points) if metric == "cosine" else points
        self._centre = points.mean(dim=0)
        self._points = points - self._centre
        self._squares = self._points.square().sum(dim=1)

    def __len__(self) -> int:
        return len(self._points)

    def nearest(self, queries: Tensor, k: int) -> Found:
        """Distances to the k nearest points, nearest first, and which points these are."""
        _check_k(k, len(self))
        values, indices = [], []
        for chunk in queries.split(_rows(self._points, k)):
            part = (unit(chunk) if self.metric == "cosine" else chunk) - self._centre
            picked = torch.addmm(self._squares, part, self._points.T, alpha=-2).topk(k, dim=1, largest=False).indices
            distances = torch.linalg.vector_norm(part.unsqueeze(1) - self._points[picked], dim=2)
            distances, order = distances.sort(dim=1)
            values.append(distances)
            indices.append(picked.gather(1, order))
        return Found(torch.cat(values), torch.cat(indices))


def largest_products(queries: Tensor, points: Tensor, k: int) -> Found:
    """The k largest scalar products of every query [n, D] with the points [N, D], largest first."""
    _check_k(k, len(points))
    found = [(part @ points.T).topk(k, dim=1) for part in queries.split(_rows(points, k))]
    return Found(torch.cat([top.values for top in found]), torch.cat([top.indices for top in found]))


def random_part(size: int, count: int, seed: int) -> Tensor:
    """Whether each of `size` examples is among `count` drawn without replacement; bool [size] on the CPU."""
    part = torch.zeros(size, dtype=torch.bool)
    part[torch.randperm(size, generator=torch.Generator().manual_seed(seed))[:count]] = True
    return part


def part_of(bank: Bank, share: float, seed: int) -> Tensor:
    """A random share of the training data, at least one example, as a mask where the features are."""
    return random_part(len(bank), max(1, round(share * len(bank))), seed).to(bank.features.device)


def check_part(k: int, share: float) -> None:
    """Refuse a number of neighbours or a share of the training data that cannot be."""
    if k < 1:
        raise SettingError(f"k = {k}: at least one neighbour is needed")
    if not 0 < share <= 1:
        raise SettingError(f"share = {share}: the share of the training data must be above 0 and at most 1")


def held_out(size: int, share: float, seed: int) -> Tensor:
    """A random share of the examples as a mask: at least one of them, and at least one is left over."""
    if size < 2:
        raise SettingError(f"a part cannot be held out of {size} training examples; two or more are needed")
    return random_part(size, min(max(1, round(share * size)), size - 1), seed)


def layers(pooled: Sequence[Tensor], features: Tensor) -> tuple[Tensor, ...]:
    """Pooled stages and features, without a last stage that is the features: what global average pooling makes."""
    if pooled and pooled[-1].shape == features.shape and (pooled[-1] - features).norm() <= SAME * features.norm():
        pooled = pooled[:-1]
    return (*pooled, features)


def _rows(points: Tensor, k: int) -> int:
    """How many queries fit into a chunk: their distances to all points, or their differences to k of them."""
    per_query = max(len(points), 2 * k * points.shape[1]) * points.element_size()
    return max(1, CHUNK_BYTES // per_query)


def _check_k(k: int, size: int) -> None:
    if not 1 <= k <= size:
        raise SettingError(f"{k} neighbours were asked for among {size} points; between 1 and {size} can be found")
