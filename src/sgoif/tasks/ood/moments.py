"""How far an activation lies from those of a reference, in units of their curvature.

For one layer with activations a, reference weights w_i and the K-FAC factor C = Σ w_i (a_i − m)(a_i − m)ᵀ / Σ w_i,

    r(x) = min_k (a − m_k)ᵀ C_ρ⁻¹ (a − m_k) / r̄,      C_ρ = (1 − ρ) C + ρ tr(C)/D · I

with one centre m, or one m_k for every class and C taken within classes. ρ is the oracle-approximating shrinkage of
Chen et al. (Shrinkage Algorithms for MMSE Covariance Estimation, 2010), which needs no setting: close to 0 with many
examples, larger with few. r̄ is the mean over examples that took no part in C, so r is about 1 for inputs that belong.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Self

import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.ood.activation_matrix import ActivationMatrix

LEAST_SHRINKAGE = 1e-3
"""Keeps C_ρ invertible where activations are constant or repeat each other."""
SMALLEST = 1e-12


class MomentSums:
    """Weighted sums of activations, in double precision, by class."""

    def __init__(self, size: int, classes: int, device: torch.device) -> None:
        self.weight = torch.zeros(classes, dtype=torch.float64, device=device)
        self.squares = torch.zeros((), dtype=torch.float64, device=device)
        self.first = torch.zeros(classes, size, dtype=torch.float64, device=device)
        self.second = torch.zeros(size, size, dtype=torch.float64, device=device)

    def add(self, activations: Tensor, classes: Tensor, weights: Tensor) -> None:
        """Fold a batch in: [n, D], the class of each example and what it counts."""
        a, w = activations.double(), weights.double()
        self.weight.index_add_(0, classes, w)
        self.squares += w.square().sum()
        self.first.index_add_(0, classes, w[:, None] * a)
        self.second += a.T @ (w[:, None] * a)

    def layer(self) -> "LayerMoments":
        """The reference seen so far; classes without weight have no centre."""
        present = self.weight > 0
        total = self.weight.sum()
        if not bool(present.any()):
            raise SettingError("there is nothing to compare with: no example of the reference has any weight")
        centres = self.first[present] / self.weight[present, None]
        within = self.second / total - (centres.T * (self.weight[present] / total)) @ centres
        count = float(total.square() / self.squares)  # the number of equally weighted examples worth as much
        return LayerMoments(centres.float(), _root(within, count).float().contiguous(), 1.0)


@dataclass(frozen=True)
class LayerMoments:
    """Where a layer's activations lie."""

    centres: Tensor
    """[K, D]"""
    root: Tensor
    """[D, D], root rootᵀ = C_ρ⁻¹"""
    scale: float
    """r̄"""

    def distance(self, activations: Tensor) -> Tensor:
        """r of every row, [n]."""
        with torch.autocast(activations.device.type, enabled=False):
            return MeanDistance([self]).mean(activations.unsqueeze(1)).clamp_min(0)

    def scaled(self, activations: Tensor) -> Self:
        """The same with r̄ from these rows."""
        return replace(self, scale=max(float(replace(self, scale=1.0).distance(activations).mean()), SMALLEST))


@dataclass(frozen=True)
class MeanDistance:
    """All layers together, of activations in an `ActivationMatrix`: one batched product whitens them."""

    layers: Sequence[LayerMoments]

    def mean(self, matrix: Tensor, out: Tensor | None = None) -> Tensor:
        """Mean of r over layers, [n, L, W] to [n]; below 0 by no more than rounding."""
        whitened = torch.bmm((matrix - self._middle).transpose(0, 1), self._roots)
        length = torch.linalg.vector_norm(torch.linalg.vector_norm(whitened, dim=2), dim=0)  # at once it takes longer
        if not self._several:
            return torch.square(length, out=out)
        nearest = reduce(torch.add, (centres.nearest(whitened) for centres in self._several))
        return torch.addcmul(nearest, length, length, out=out)

    @cached_property
    def matrix(self) -> ActivationMatrix:
        """Where activations of the layers lie."""
        return ActivationMatrix(tuple(len(layer.root) for layer in self.layers), self.layers[0].root.device)

    @cached_property
    def _roots(self) -> Tensor:
        """[L, W, W]: scales and the mean over layers are in them; zeros where a layer is narrower."""
        count, width = len(self.layers), self.matrix.width
        roots = self.layers[0].root.new_zeros(count, width, width)
        for place, layer in zip(roots, self.layers, strict=True):
            size = len(layer.root)
            place[:size, :size] = layer.root / math.sqrt(layer.scale * count)
        return roots

    @cached_property
    def _middle(self) -> Tensor:
        """The middle of each layer's centres, [L, W]: far from it, squares would lose their last digits."""
        return self.matrix.join([layer.centres.mean(0, keepdim=True) for layer in self.layers])[0]

    @cached_property
    def _several(self) -> "list[_Centres]":
        """Of the layers with more than one centre."""
        return [
            _Centres.of(layer, number, self._roots[number])
            for number, layer in enumerate(self.layers)
            if len(layer.centres) > 1
        ]


@dataclass(frozen=True)
class _Centres:
    """Several centres of one layer, whitened about their middle: ‖w − o_k‖² = ‖w‖² + ‖o_k‖² − 2 o_kᵀ w."""

    number: int
    others: Tensor
    """o: [W, K]"""
    norms: Tensor
    """‖o‖²: [K]"""

    @classmethod
    def of(cls, layer: LayerMoments, number: int, root: Tensor) -> Self:
        others = (layer.centres - layer.centres.mean(0)) @ root[: len(layer.root)]
        return cls(number, others.T.contiguous(), others.square().sum(1))

    def nearest(self, whitened: Tensor) -> Tensor:
        """What must be added to ‖w‖² to get the distance from the nearest centre, [n]."""
        return torch.addmm(self.norms, whitened[self.number], self.others, alpha=-2).amin(1)


def _root(covariance: Tensor, count: float) -> Tensor:
    size = len(covariance)
    trace = covariance.diagonal().sum().clamp_min(SMALLEST)
    rho = max(LEAST_SHRINKAGE, shrinkage(covariance, count))
    shrunk = (1 - rho) * covariance
    shrunk.diagonal().add_(rho * trace / size)
    values, vectors = torch.linalg.eigh((shrunk + shrunk.T) / 2)
    floor = LEAST_SHRINKAGE * trace / size
    root: Tensor = vectors * torch.maximum(values, floor).rsqrt()
    return root


def shrinkage(covariance: Tensor, count: float) -> float:
    """ρ for a covariance of so many examples."""
    size = len(covariance)
    squares, trace = float(covariance.square().sum()), float(covariance.diagonal().sum())
    apart = squares - trace**2 / size
    if apart <= 0 or size == 1:
        return 1.0 if size > 1 else 0.0
    return min(1.0, ((1 - 2 / size) * squares + trace**2) / ((count + 1 - 2 / size) * apart))
