"""Activations of several layers side by side, so that one operation serves all of them.

    [n, D_1], …, [n, D_L]  →  [n, L, W],      W = max_l D_l,      with zeros where a layer is narrower

Starting a small operation on a GPU takes about as long as the operation itself. What is computed beyond the forward
pass therefore costs what its number of operations costs, and padding with zeros costs next to nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class ActivationMatrix:
    """The layout of a matrix of activations: one row for every layer of these sizes, padded to the widest."""

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

    def padded(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The layers, each followed by its padding: side by side they fill the matrix."""
        pieces: list[Tensor] = []
        for part, size in zip(parts, self.sizes, strict=True):
            pieces.append(part)
            if size < self.width:
                pieces.append(self._zeros.expand(len(part), self.width - size))
        return pieces

    def from_rows(self, rows: Tensor) -> Tensor:
        """One row for every layer, [n, L, W], of the first columns of these."""
        matrix: Tensor = rows[:, : self.columns].unflatten(1, (len(self.sizes), self.width))
        return matrix

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The layers as a matrix."""
        return self.from_rows(torch.cat(self.padded(parts), 1))

    @cached_property
    def _zeros(self) -> Tensor:
        """What is put after a layer, in as many rows and columns as are missing."""
        return torch.zeros(1, 1, device=self.device, dtype=torch.float32)
