"""PatchCore: the patch of an image that is farthest from a thinned-out memory of training patches.

Roth, Pemula, Zepeda, Schölkopf, Brox, Gehler: Towards Total Recall in Industrial Anomaly Detection. CVPR 2022.

Patches. Two stages from the middle of the network, each averaged over 3×3 neighbourhoods; the smaller is enlarged to
the size of the larger (bilinear), and both are joined at every position.

Memory M. Patches of training images, thinned by greedy k-centre selection: the next one to keep is the patch farthest
from those kept, measured after a random projection ψ to 128 dimensions,

    next = argmax_{m not kept} min_{n kept} ‖ψ(m) − ψ(n)‖

Score. Of the patches P(x), the one farthest from its nearest neighbour in the memory, m*, weighed down where m* is one
of many alike, N_b(m*) the b nearest of m* in the memory, itself among them:

    t, m* = argmax_{t in P(x)} argmin_{m in M} ‖t − m‖
    score = (1 − exp‖t − m*‖ / Σ_{m in N_b(m*)} exp‖t − m‖) ‖t − m*‖

The stages are those that correspond to the authors' blocks 2 and 3 of 4; neighbourhood, projection and a memory of 1%
of the patches are theirs too. b = 9 is that of OpenOOD and anomalib, the paper names none. Different from the paper:
the network is the trained classifier, as in OpenOOD, and the memory is made of at most 1,000 training images, fewer
where their patches would take more than a gibibyte, and has at most 10,000 patches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.errors import LayerError, SettingError
from sgoif.tasks.ood.network import Seen
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.neighbours import Neighbours

NEIGHBOURHOOD = 3
PROJECTED = 128
"""Dimensions in which the k-centre selection measures, enough by the lemma of Johnson and Lindenstrauss."""
PATCH_BYTES = 2**30
"""Patches that the memory is chosen from."""
SCORE_BYTES = 2**28
"""Patches of images to be scored, at a time."""


def middle(count: int) -> tuple[int, ...]:
    """Which two stages of so many are in the middle; of an odd number the earlier ones, which know less of classes."""
    start = max(0, (count - 2) // 2)
    return tuple(range(start, min(start + 2, count)))


def as_map(stage: Tensor) -> Tensor:
    """A map as it is; tokens [n, D, T] as the square map they were made of, without a class token in front."""
    if stage.dim() == 4:
        return stage
    side = math.isqrt(stage.shape[2])
    if stage.shape[2] - side**2 not in (0, 1):
        raise LayerError(f"{stage.shape[2]} tokens are no square map of patches, with or without a class token")
    square: Tensor = stage[:, :, stage.shape[2] - side**2 :].unflatten(2, (side, side))
    return square


def patches(stages: Sequence[Tensor]) -> Tensor:
    """Locally aware patch features [n, positions, D] of some stages."""
    maps = [F.avg_pool2d(as_map(stage), NEIGHBOURHOOD, stride=1, padding=NEIGHBOURHOOD // 2) for stage in stages]
    largest = max((each.shape[2:] for each in maps), key=math.prod)
    joined = [
        each if each.shape[2:] == largest else F.interpolate(each, tuple(largest), mode="bilinear", align_corners=False)
        for each in maps
    ]
    return torch.cat(joined, dim=1).flatten(2).transpose(1, 2)


def greedy_centres(points: Tensor, count: int, first: int) -> Tensor:
    """`count` rows of points [N, D], starting with `first`, each the farthest from those before it."""
    points = points - points.mean(dim=0)
    squares = points.square().sum(dim=1)
    distance = torch.full_like(squares, torch.inf)
    chosen = [torch.tensor(first, device=points.device)]
    for _ in range(count - 1):
        last = chosen[-1]
        distance = torch.minimum(distance, squares + squares[last] - 2 * (points @ points[last]))
        # Rounding may leave a chosen point, or its twins, a little away from itself.
        distance[last] = -torch.inf
        chosen.append(distance.argmax())
    return torch.stack(chosen)


class PatchCore(Detector):
    """Distance of the strangest patch to a coreset of training patches."""

    name = "patchcore"
    title = "PatchCore"
    paper = (
        "Roth, Pemula, Zepeda, Schölkopf, Brox, Gehler: Towards Total Recall in Industrial Anomaly Detection. CVPR 2022"
    )

    def __init__(
        self,
        *,
        images: int = 1000,
        coreset: float = 0.01,
        most: int = 10_000,
        neighbours: int = 9,
        stages: Sequence[int] | None = None,
        seed: int = 0,
    ) -> None:
        for name, value in (("images", images), ("most", most), ("neighbours", neighbours)):
            if value < 1:
                raise SettingError(f"{name} = {value}: at least 1 is needed")
        if not 0 < coreset <= 1:
            raise SettingError(f"coreset = {coreset}: the share of patches to keep must be above 0 and at most 1")
        if stages is not None and not stages:
            raise SettingError("stages is empty: name at least one, or None for the two in the middle")
        self.images, self.coreset, self.most = images, coreset, most
        self.neighbours, self.stages, self.seed = neighbours, stages, seed

    def fit(self, bank: Bank) -> Self:
        self._stages = self._chosen_stages(len(bank.pooled))
        random = torch.Generator().manual_seed(self.seed)
        candidates = self._candidates(bank, torch.randperm(len(bank), generator=random))
        count = min(max(1, round(self.coreset * len(candidates))), self.most)
        projected = candidates
        if candidates.shape[1] > PROJECTED:
            projection = torch.randn(candidates.shape[1], PROJECTED, generator=random) / PROJECTED**0.5
            projected = candidates @ projection.to(candidates)
        first = int(torch.randint(len(candidates), (1,), generator=random))
        self._patches = candidates[greedy_centres(projected, count, first)]
        self._memory = Neighbours(self._patches)
        self._around = self._memory.nearest(self._patches, min(self.neighbours, count)).rows
        return self

    def score(self, seen: Seen) -> Tensor:
        used = [seen.stages[number] for number in self._stages]
        size = max(1, SCORE_BYTES // _bytes_per_image(used))
        return torch.cat([self._score(parts) for parts in zip(*(stage.split(size) for stage in used), strict=True)])

    def _score(self, stages: Sequence[Tensor]) -> Tensor:
        of_images = patches(stages)
        found = self._memory.nearest(of_images.flatten(0, 1), 1)
        distance: Tensor
        distance, at = found.values.view(of_images.shape[:2]).max(dim=1)
        if self._around.shape[1] == 1:
            return distance
        image = torch.arange(len(of_images), device=at.device)
        strangest = of_images[image, at]
        around = self._around[found.rows.view(of_images.shape[:2])[image, at]]
        away = torch.linalg.vector_norm(strangest.unsqueeze(1) - self._patches[around], dim=2)
        weight: Tensor = 1 - (distance - away.logsumexp(dim=1)).exp()
        return weight * distance

    def _chosen_stages(self, count: int) -> tuple[int, ...]:
        if not count:
            raise LayerError("PatchCore looks at the stages of a network; this one has none, neither maps nor tokens")
        chosen = middle(count) if self.stages is None else tuple(self.stages)
        if not all(-count <= number < count for number in chosen):
            raise SettingError(f"stages = {chosen}: the network has {count}, numbered from 0")
        return chosen

    def _candidates(self, bank: Bank, order: Tensor) -> Tensor:
        """Patches of the training images that come first in a random order, as many as settings and memory allow."""
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        limit, start, kept = min(self.images, len(bank)), 0, []
        for seen, _ in bank.batches():
            used = [seen.stages[number] for number in self._stages]
            limit = min(limit, max(1, PATCH_BYTES // _bytes_per_image(used)))
            chosen = (place[start : start + len(seen)] < limit).to(seen.logits.device)
            start += len(seen)
            kept.append(patches([stage[chosen] for stage in used]).flatten(0, 1))
        return torch.cat(kept)


def _bytes_per_image(stages: Sequence[Tensor]) -> int:
    """What the patches of an image take."""
    positions = max(math.prod(stage.shape[2:]) for stage in stages)
    return positions * sum(stage.shape[1] * stage.element_size() for stage in stages)
