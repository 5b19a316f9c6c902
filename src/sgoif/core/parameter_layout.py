"""Vectors over the watched layers.

A watched layer l holds a block of rows_l × cols_l weights (a bias is one more column). A vector over all watched
layers is the concatenation of its flattened blocks, and K of them are one float tensor of shape [K, P] with
P = Σ_l rows_l · cols_l. Solvers see only [K, P]; curvature backends look at single blocks through `Layout.split`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """The weights of one watched layer, as a matrix."""

    name: str
    rows: int
    cols: int

    @property
    def size(self) -> int:
        return self.rows * self.cols


@dataclass(frozen=True)
class Layout:
    """Where each block lies in a flat vector."""

    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        return sum(block.size for block in self.blocks)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Start of each block, followed by the total size."""
        return tuple(accumulate((block.size for block in self.blocks), initial=0))

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of shape [K, rows, cols], one per block, of vectors [K, P]."""
        sizes = [block.size for block in self.blocks]
        parts = torch.split(flat, sizes, dim=-1)
        return [part.reshape(*flat.shape[:-1], b.rows, b.cols) for part, b in zip(parts, self.blocks, strict=True)]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Vectors [K, P] from blocks [K, rows, cols]."""
        return torch.cat([part.flatten(-2) for part in parts], dim=-1)
