"""Activations of several layers side by side, so that one operation serves all of them.

    [n, D_1], …, [n, D_L]  →  [n, L, W],      W = max_l D_l,      with zeros where a layer is narrower

A GPU needs about as long to be told of a small operation as to do it. What is looked at beyond the forward pass
therefore costs what the number of operations costs, and zeros that are multiplied along cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Grid:
    """Places for layers of these sizes."""

    sizes: tuple[int, ...]
    device: torch.device

    @property
    def width(self) -> int:
        """W."""
        return max(self.sizes)

    @property
    def columns(self) -> int:
        """L · W."""
        return len(self.sizes) * self.width

    def pieces(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The layers and what is missing after each: side by side they fill the grid."""
        pieces: list[Tensor] = []
        for part, size in zip(parts, self.sizes, strict=True):
            pieces.append(part)
            if size < self.width:
                pieces.append(self._zeros.expand(len(part), self.width - size))
        return pieces

    def of(self, rows: Tensor) -> Tensor:
        """One row for every layer, [n, L, W], of the first columns of these."""
        grid: Tensor = rows[:, : self.columns].unflatten(1, (len(self.sizes), self.width))
        return grid

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The layers as a grid."""
        return self.of(torch.cat(self.pieces(parts), 1))

    @cached_property
    def _zeros(self) -> Tensor:
        """What is put after a layer, in as many rows and columns as are missing."""
        return torch.zeros(1, 1, device=self.device, dtype=torch.float32)
