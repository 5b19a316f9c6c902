"""How far an input lies from the nearest example that belongs, over all layers at once.

    ν(x) = min_b (1 − mean_l cos(a_l(x), a_l(b)))

a_l are the activations of layer l, and b runs over a random sample of the reference. A neighbour must resemble the
input in all layers together: one that is near in an early layer and another that is near in a late one do not count.
Directions are compared, not lengths, and no label is asked for, so wrong labels in the reference do no harm here.

The examples are stored in half precision. A GPU multiplies them so too, and adds up in single precision: of the input's
directions, which are at most 1, that leaves three digits in each of hundreds of terms, far more than ν needs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.tasks.ood.activation_matrix import ActivationMatrix
from sgoif.tasks.ood.moments import SMALLEST

MOST = 2000
"""Examples in the sample."""


class RandomSample:
    """An even random sample of a stream of rows, the same for the same stream."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._generator = torch.Generator("cpu").manual_seed(0)
        self._keys = torch.zeros(0, device="cpu")
        self._rows: list[Tensor] | None = None

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def rows(self) -> list[Tensor]:
        """The parts of all rows in the sample."""
        if self._rows is None:
            raise SettingError("there is nothing to compare with: no example of the reference has any weight")
        return self._rows

    def add(self, parts: Sequence[Tensor], chosen: Tensor) -> None:
        """Consider a batch, the columns of each row given in parts; only rows that are `chosen` may be taken."""
        # The rows with the smallest keys stay.
        keys = torch.rand(len(chosen), generator=self._generator, device="cpu", dtype=torch.float32)
        limit = float(self._keys.max()) if len(self._keys) >= self.most else math.inf
        taken = ((keys < limit) & chosen.cpu()).nonzero().squeeze(1)
        if not len(taken):
            return
        new = [part[taken.to(part.device)].float() for part in parts]
        rows = new if self._rows is None else [torch.cat(both) for both in zip(self._rows, new, strict=True)]
        keys = torch.cat([self._keys, keys[taken]])
        if len(keys) > self.most:
            stay = keys.topk(self.most, largest=False).indices
            keys, rows = keys[stay], [part[stay.to(part.device)] for part in rows]
        self._keys, self._rows = keys, rows

    def neighbours(self) -> "Neighbours":
        """The sample, ready to be compared with."""
        return Neighbours.of(self.rows)


@dataclass(frozen=True)
class Neighbours:
    """Examples that belong, each as the directions of its activations."""

    rows: Tensor
    """[M, ΣD]: unit vectors of the layers side by side, over √L; the product of two rows is their mean cosine."""
    sizes: tuple[int, ...]
    """D of every layer."""

    @classmethod
    def of(cls, parts: Sequence[Tensor]) -> Self:
        """These activations, [M, D] of every layer."""
        units = [nn.functional.normalize(part, eps=SMALLEST) / math.sqrt(len(parts)) for part in parts]
        # Rounded as they are stored, so that a sentinel from a file says exactly what it said before.
        return cls(torch.cat(units, 1).half().float(), tuple(part.shape[1] for part in parts))

    def nearest(self, matrix: Tensor, out: Tensor | None = None) -> Tensor:
        """1 − ν of activations in an `ActivationMatrix`, [n, L, W] to [n]; rounding may bring it above 1."""
        width = matrix.shape[2]
        units = torch.rms_norm(matrix, (width,), self._length, SMALLEST / width).flatten(1)
        cosines = half_matmul(units, self._half) if supports_half_matmul(units.device) else units @ self._single
        return torch.amax(cosines, 1, out=out)

    @cached_property
    def _length(self) -> Tensor:
        """Brings rows whose mean square is 1 to the length 1/√L, [W]."""
        width = max(self.sizes)
        return self.rows.new_full((width,), 1 / math.sqrt(width * len(self.sizes)))

    @cached_property
    def _single(self) -> Tensor:
        """The examples as columns, in the places of an `ActivationMatrix`."""
        return ActivationMatrix(self.sizes, self.rows.device).join(self.rows.split(self.sizes, 1)).flatten(1).T

    @cached_property
    def _half(self) -> Tensor:
        return self._single.half()


def supports_half_matmul(device: torch.device) -> bool:
    """Whether this device and this torch have a product of halves that comes out in single precision."""
    return device.type == "cuda" and torch.version.hip is None and hasattr(torch.ops.aten.mm, "dtype")


def half_matmul(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in single precision, both factors rounded to half."""
    product: Tensor = torch.mm(left.half(), right, out_dtype=torch.float32)
    return product
