"""Pictures that nobody took, for methods that are defined with outliers where no real ones may be used.

Half of them show fractals (`pixmix`), half clouds, ripples and grains (`perlin`), all in random colours. They are drawn
on the CPU from one seed, so that everybody who asks for them has the same ones. None is part of a data set, and none
shows an object: they have texture and colour only, and what they teach may help most where outliers have no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif_bench.ood.pictures import Look, Stack
from sgoif_bench.ood.trained.perlin import patterns
from sgoif_bench.ood.trained.pixmix import fractals

COUNT = 10_000
SIDE = 32
SEED = 451


@lru_cache(maxsize=1)
def pictures(count: int = COUNT) -> Tensor:
    """So many pictures, uint8 [count, 3, 32, 32], fractals and patterns in turn."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = fractals((count + 1) // 2, SIDE, generator)
    made = patterns(count // 2, 3, SIDE, generator)
    both = torch.empty(count, 3, SIDE, SIDE, dtype=torch.uint8)
    both[0::2], both[1::2] = drawn, (made * 255).round().to(torch.uint8)
    return both


@dataclass(frozen=True)
class Procedural:
    """The pictures, or some of them, as a set that is not drawn before it is read."""

    rows: NDArray[np.int64] = field(default_factory=lambda: np.arange(COUNT))

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, rows: NDArray[np.int64]) -> Procedural:
        return Procedural(self.rows[rows])

    def batches(self, look: Look, size: int) -> Iterator[Tensor]:
        yield from Stack(pictures()).pick(self.rows).batches(look, size)
