"""How far an input lies from the nearest example that belongs, over all layers at once.

    ν(x) = min_b (1 − mean_l cos(a_l(x), a_l(b)))

a_l are the activations of layer l, and b runs over a random sample of the reference. A neighbour must resemble the
input in all layers together: one that is near in an early layer and another that is near in a late one do not count.
Directions are compared, not lengths, and no label is asked for, so wrong labels in the reference do no harm here.

The examples are stored in half precision. A GPU multiplies them so too, and adds up in single precision: of the input's
directions, which are at most 1, that leaves three digits in each of hundreds of terms, far more than ν needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.shift.moments import SMALLEST

MOST = 2000
"""Examples in the sample."""


class Sample:
    """An even random sample of a stream of rows, the same for the same stream."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._generator = torch.Generator().manual_seed(0)
        self._keys = torch.zeros(0)
        self._rows: list[Tensor] | None = None

    def add(self, parts: Sequence[Tensor], chosen: Tensor) -> None:
        """Consider a batch, the columns of each row given in parts; only rows that are `chosen` may be taken."""
        keys = torch.rand(len(chosen), generator=self._generator)  # the rows with the smallest keys stay
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

    def neighbours(self) -> Neighbours:
        """The sample, ready to be compared with."""
        if self._rows is None:
            raise SettingError("there is nothing to compare with: no example of the reference has any weight")
        raw = Neighbours(torch.cat(self._rows, 1), tuple(part.shape[1] for part in self._rows))
        # Rounded as they are stored, so that a sentinel from a file says exactly what it said before.
        return replace(raw, rows=raw.units(raw.rows).half().float())


@dataclass(frozen=True)
class Neighbours:
    """Examples that belong, each as the directions of its activations."""

    rows: Tensor
    """[M, ΣD]: unit vectors of the layers side by side, over √L; the product of two rows is their mean cosine."""
    sizes: tuple[int, ...]
    """D of every layer."""

    def distance(self, joined: Tensor) -> Tensor:
        """ν of activations side by side, [n, ΣD] to [n]; between 0 and 2."""
        units = self.units(joined)
        cosines = half_product(units, self._half) if multiplies_halves(units.device) else units @ self.rows.T
        nearest: Tensor = cosines.amax(1)
        return (1 - nearest).clamp_min(SMALLEST)

    def units(self, joined: Tensor) -> Tensor:
        """Every layer's part brought to the length 1/√L; what is all zeros stays so."""
        lengths = (joined.square() @ self._belongs).clamp_min(SMALLEST).rsqrt()
        return joined * (lengths @ self._spread)

    @cached_property
    def _half(self) -> Tensor:
        return self.rows.half().T

    @cached_property
    def _belongs(self) -> Tensor:
        """[ΣD, L]: one where a column belongs to a layer. One product adds up the squares of all layers."""
        layer = torch.repeat_interleave(torch.arange(len(self.sizes)), torch.tensor(self.sizes))
        return torch.nn.functional.one_hot(layer, len(self.sizes)).to(self.rows)

    @cached_property
    def _spread(self) -> Tensor:
        return self._belongs.T / math.sqrt(len(self.sizes))


def multiplies_halves(device: torch.device) -> bool:
    """Whether this device and this torch have a product of halves that comes out in single precision."""
    return device.type == "cuda" and torch.version.hip is None and hasattr(torch.ops.aten.mm, "dtype")


def half_product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in single precision, both factors rounded to half."""
    product: Tensor = torch.mm(left.half(), right, out_dtype=torch.float32)
    return product
