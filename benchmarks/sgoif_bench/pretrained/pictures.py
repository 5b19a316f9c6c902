"""What no label changes: images, their features and, for SimiFeat, neighbours among changed images.

All of it is computed once for all noises, seeds and methods, and how long it took is counted for every method that
uses it. Features stay on disk as float16, named after data set, network, size and number.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.audit.batches import Moves, stream
from sgoif.backbones import Backbone
from sgoif.core.provenance import machine
from sgoif_bench.command import Say
from sgoif_bench.labels.datasets import LabelledData
from sgoif_bench.pretrained.recipes import Recipe
from sgoif_bench.pretrained.sets import SETS

AT_ONCE = {"cpu": 16}
OTHERWISE = 256
BLOCK = 2048
"""Queries whose similarities to all examples are in memory at once."""
HALF = 0.5
VIEW = 3
"""The random stream of SimiFeat's epochs; data, not the seed of a run, decides what they look at."""


@dataclass(frozen=True)
class Neighbours:
    """The nearest others of some examples by cosine, nearest first, [n, k] each."""

    similarity: Tensor
    rows: Tensor


@dataclass(frozen=True)
class Timed:
    """Something that was computed once, and the seconds it took."""

    value: Tensor
    seconds: float


@dataclass(eq=False)
class Pictures:
    """Images of a data set as a network sees them."""

    data: LabelledData
    backbone: Backbone
    recipe: Recipe
    device: torch.device
    scratch: Path
    reading: float
    """Seconds that reading the images took."""
    tell: Say

    @property
    def mirror(self) -> bool:
        """Whether a mirrored image still shows its class."""
        return SETS[self.data.name].mirror

    @cached_property
    def on_device(self) -> Tensor:
        """All images, uint8 at their own size."""
        return self.data.images.to(self.device)

    def features_of(self, images: Tensor) -> Tensor:
        """float32 [n, width] on the device."""
        batch = AT_ONCE.get(self.device.type, OTHERWISE)
        return self.backbone.features(images.to(self.device), self.recipe.size, batch)

    @property
    def file(self) -> Path:
        """Where the features stay."""
        r = self.recipe
        return self.scratch / f"{self.data.name}-{len(self.data)}-{r.backbone}-{r.digest}-{r.size}.npz"

    @cached_property
    def features(self) -> Timed:
        """Of every image, from disk where they are there for the same labels; rounded to float16 in any case."""
        if self.file.is_file():
            with np.load(self.file, allow_pickle=False) as kept:
                if np.array_equal(kept["labels"], self.data.labels):
                    return Timed(torch.from_numpy(kept["features"]).float().to(self.device), float(kept["seconds"]))
            self.tell(f"{self.file} belongs to other data and is made again")
        self.tell(f"features of {len(self.data):,} images of {self.data.name} at {self.recipe.size} pixels")
        start = time.perf_counter()
        found = self.features_of(self.data.images).half().cpu()
        seconds = time.perf_counter() - start
        self.scratch.mkdir(parents=True, exist_ok=True)
        made = json.dumps(machine(self.device))
        np.savez(self.file, features=found.numpy(), labels=self.data.labels, seconds=seconds, machine=made)
        return Timed(found.float().to(self.device), seconds)

    @cached_property
    def standardised(self) -> Tensor:
        """Features of zero mean and unit spread."""
        found = self.features.value
        spread = found.std(0)
        return (found - found.mean(0)) / torch.where(spread > 0, spread, 1.0)

    @cached_property
    def epochs(self) -> tuple[list[Neighbours], float]:
        """What each epoch of SimiFeat sees of every example, and the seconds of all of them together."""
        start, total = time.perf_counter(), self.recipe.simifeat_epochs
        found = []
        for epoch in range(total):
            self.tell(f"SimiFeat: epoch {epoch + 1} of {total}")
            found.append(self._epoch(epoch))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return found, time.perf_counter() - start

    def _epoch(self, epoch: int) -> Neighbours:
        count, seed = self.recipe.neighbours - 1, stream(0, VIEW, epoch)
        if self.recipe.views == "features":
            generator = torch.Generator().manual_seed(seed)
            voters = torch.randperm(len(self.data), generator=generator)[: round(HALF * len(self.data))]
            return neighbours(self.features.value, count, voters.sort().values)
        sides = tuple(self.data.images.shape[-2:])
        moves = Moves.drawn(len(self.data), sides, seed, self.mirror)
        parts = []
        for first in range(0, len(self.data), BLOCK):
            part = slice(first, first + BLOCK)
            parts.append(self.features_of(moves.part(part).applied(self.data.images[part].to(self.device))))
        return neighbours(torch.cat(parts), count)


def neighbours(features: Tensor, count: int, among: Tensor | None = None) -> Neighbours:
    """The nearest others of every example by cosine; `among` are the rows that may be neighbours, by default all."""
    unit = F.normalize(features, dim=1)
    voters = torch.arange(len(unit), device=unit.device) if among is None else among.to(unit.device)
    count = min(count, len(voters) - 1)
    similarity, rows = [], []
    for queries in torch.arange(len(unit), device=unit.device).split(BLOCK):
        near = unit[queries] @ unit[voters].T
        near.masked_fill_(queries[:, None] == voters[None, :], -torch.inf)
        best = near.topk(count, dim=1)
        similarity.append(best.values)
        rows.append(voters[best.indices])
    return Neighbours(torch.cat(similarity), torch.cat(rows))
