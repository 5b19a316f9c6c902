"""How far an activation lies from those of a reference, in units of their curvature.

For one layer with activations a, reference weights w_i and the K-FAC factor C = Σ w_i (a_i − m)(a_i − m)ᵀ / Σ w_i,

    r(x) = min_k (a − m_k)ᵀ C_ρ⁻¹ (a − m_k) / r̄,      C_ρ = (1 − ρ) C + ρ tr(C)/D · I

with one centre m, or one m_k for every class and C taken within classes. ρ is the oracle-approximating shrinkage of
Chen et al. (Shrinkage Algorithms for MMSE Covariance Estimation, 2010), which needs no setting: close to 0 with many
examples, larger with few. r̄ is the mean over examples that took no part in C, so r is about 1 for inputs that belong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sgoif.errors import SettingError

LEAST_SHRINKAGE = 1e-3
"""Keeps C_ρ invertible where activations are constant or repeat each other."""
SMALLEST = 1e-12


class Sums:
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

    def layer(self) -> Layer:
        """The reference seen so far; classes without weight have no centre."""
        present = self.weight > 0
        total = self.weight.sum()
        if not bool(present.any()):
            raise SettingError("there is nothing to compare with: no example of the reference has any weight")
        centres = self.first[present] / self.weight[present, None]
        within = self.second / total - (centres.T * (self.weight[present] / total)) @ centres
        count = float(total.square() / self.squares)  # the number of equally weighted examples worth as much
        return Layer(centres.float(), _root(within, count).float().contiguous(), 1.0)


@dataclass(frozen=True)
class Layer:
    """Where a layer's activations lie."""

    centres: Tensor
    """[K, D]"""
    root: Tensor
    """[D, D], root rootᵀ = C_ρ⁻¹"""
    scale: float
    """r̄"""

    def distance(self, activations: Tensor) -> Tensor:
        """r of every row, [n]."""
        return Spread([self]).mean(activations).clamp_min(0)

    def nearest(self, whitened: Tensor) -> Tensor:
        """What must be added to the squares of whitened rows to get the distance from the nearest of several centres.

        Whitened are rows about the middle of the centres, times the root: where there is one centre, their squares add
        up to r.
        """
        return torch.addmm(self._norms, whitened, self._others.T, alpha=-2).amin(1)

    @cached_property
    def _root(self) -> Tensor:
        return self.root / math.sqrt(self.scale)

    @cached_property
    def _middle(self) -> Tensor:
        return self.centres.mean(0)

    @cached_property
    def _others(self) -> Tensor:
        return (self.centres - self._middle) @ self._root

    @cached_property
    def _norms(self) -> Tensor:
        return self._others.square().sum(1)

    def scaled(self, activations: Tensor) -> Layer:
        """The same with r̄ from these rows."""
        return replace(self, scale=max(float(replace(self, scale=1.0).distance(activations).mean()), SMALLEST))


@dataclass(frozen=True)
class Spread:
    """All layers together. What is started once need not be started for each of them."""

    layers: Sequence[Layer]

    def mean(self, joined: Tensor) -> Tensor:
        """Mean of r over layers, of activations side by side: [n, ΣD] to [n]; below 0 by no more than rounding."""
        parts = (joined - self._middle).split(self.sizes, dim=1)
        whitened = [part @ layer._root for part, layer in zip(parts, self.layers, strict=True)]
        total: Tensor = torch.linalg.vector_norm(torch.cat(whitened, 1), dim=1).square()
        for layer, at in zip(self.layers, whitened, strict=True):
            if len(layer.centres) > 1:
                total = total + layer.nearest(at)
        return total / len(self.layers)

    @cached_property
    def sizes(self) -> list[int]:
        """D of every layer."""
        return [layer.root.shape[0] for layer in self.layers]

    @cached_property
    def _middle(self) -> Tensor:
        """The middle of each layer's centres: far from it, squares would lose their last digits."""
        return torch.cat([layer._middle for layer in self.layers])


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
