"""Diagonal second moment of the per-example gradients.

    s_t = decay · s_{t−1} + (1 − decay) · mean_i g_i²        (squares entry by entry; s_0 = 0)
    w_t = decay · w_{t−1} + (1 − decay)                      (w_t = 1 − decay^t)
    H   = diag(s_t / w_t),    λ = damping · mean(s_t / w_t)

With one position per example g_i = δ_i ⊗ a_i, so Σ_i g_i² = (δ²)ᵀ(a²): one product, no per-example gradient.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sgoif.core.parameter_layout import Layout
from sgoif.core.precision import full_precision
from sgoif.curvature.base import Curvature, Factors, Spectrum, accumulate, all_finite, until_update

# Entries of per-example gradients held at once (64 MiB of float32).
CHUNK = 2**24


def mean_square(factors: Factors) -> Tensor:
    """mean_i g_i² of one block, [rows, cols]; not a number for an empty batch."""
    batch, positions, rows = factors.delta.shape
    cols = factors.inputs.shape[-1]
    if not factors.elementwise and positions == 1:
        return factors.delta[:, 0].square().T @ factors.inputs[:, 0].square() / batch
    total = factors.delta.new_zeros(rows, cols)
    step = max(1, CHUNK // (rows * cols * (positions if factors.elementwise else 1)))
    for start in range(0, batch, step):
        part = slice(start, start + step)
        gradient = Factors(factors.inputs[part], factors.delta[part], factors.elementwise).gradient()
        total += gradient.square().sum(0)
    return total / batch


class Diagonal(Curvature):
    """H as a diagonal: the cheapest estimate, blind to every correlation between weights."""

    name = "diagonal"

    def __init__(
        self, layout: Layout, *, damping: float = 0.01, decay: float = 0.95, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(layout, damping=damping, decay=decay, device=device)
        self._square = torch.zeros(layout.size, device=self.device)
        self._weight = torch.zeros((), device=self.device)

    @full_precision
    def update(self, factors: Sequence[Factors]) -> None:
        square = self.layout.join([mean_square(factor) for factor in self._prepare(factors)])
        valid = all_finite([square])
        accumulate(self._square, square, self.decay, valid)
        accumulate(self._weight, torch.ones_like(self._weight), self.decay, valid)
        self.updates += 1
        self._cache.clear()

    @full_precision
    def matvec(self, vectors: Tensor) -> Tensor:
        return self._vectors(vectors) * self.diagonal()

    @full_precision
    def solve(self, vectors: Tensor) -> Tensor:
        return self._vectors(vectors) / self.diagonal()

    @full_precision
    @until_update
    def diagonal(self) -> Tensor:
        square = self._square / torch.where(self._weight > 0, self._weight, 1.0)
        return square + self._ridge(square.mean(), self._weight)

    @full_precision
    def spectrum(self) -> Spectrum:
        smallest, largest = torch.stack(self.diagonal().aminmax()).tolist()
        return Spectrum(smallest, largest)

    def state_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "updates": self.updates,
            "square": self._square.clone(),
            "weight": self._weight.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._check_state(state, {"square": (self.layout.size,), "weight": ()})
        self._square = state["square"].to(self.device, torch.float32, copy=True)
        self._weight = state["weight"].to(self.device, torch.float32, copy=True)
        self.updates = int(state["updates"])
        self._cache.clear()
