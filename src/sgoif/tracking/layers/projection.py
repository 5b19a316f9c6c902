"""Random projections of blocks that are too large to be kept once per anchor.

With orthonormal rows U [r × rows] and V [s × cols] a block lives in the r × s matrices U W Vᵀ, and a direction ψ̃ found
there is lifted to Uᵀ ψ̃ V before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Projection:
    """Orthonormal rows on the output side (U) and the input side (V) of a block."""

    out: Tensor
    inp: Tensor

    @staticmethod
    def random(rows: int, cols: int, rank: int, seed: int, device: torch.device) -> Projection:
        """A seeded random projection to at most `rank` dimensions a side."""

        def orthonormal(size: int, generator: torch.Generator) -> Tensor:
            if size <= rank:
                return torch.eye(size)
            basis: Tensor = torch.linalg.qr(torch.randn(size, rank, generator=generator, dtype=torch.float64))[0]
            return basis.T.float()

        generator = torch.Generator().manual_seed(seed)
        sides = orthonormal(rows, generator), orthonormal(cols, generator)
        return Projection(*(side.contiguous().to(device) for side in sides))
