"""The three signals by which the controller judges whether curvature and iterates can be trusted.

    iterate gap         ‖φ_N − φ_R‖ / ‖φ_R‖       Neumann against Richardson iterates of the same length
    gradient energy     ‖Q g‖² / ‖g‖²             how much of a gradient a low-rank basis sees
    probe variance      Var(p_t) / E[p_t]²        p_t = vᵀH_t v over Rademacher v, as H_t moves through training

Neumann's α is the middle of the spectrum, Richardson's step the inverse of its top: both converge to H⁻¹g, but in a
direction of eigenvalue λ at the rates |1 − 2λ/(λ_min + λ_max)| and |1 − λ/λ_max|. They agree where both have converged
and differ by up to a factor two where neither has, so the gap says how far away H⁻¹g still is at that depth.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.solvers.base import Operator, row_dot, row_norm


def iterate_gap(operator: Operator, rhs: Tensor, terms: int = 3) -> Tensor:
    """Relative distance [K] of `terms` Neumann terms from as many Richardson steps; 2 (terms − 1) K products.

    A zero right-hand side has no gap; one that is not finite gives NaN.
    """
    if not terms >= 1:
        raise SettingError(f"terms must be at least 1; got {terms}")
    spectrum = operator.spectrum()
    steps = rhs.new_tensor([2 / (spectrum.smallest + spectrum.largest), 1 / spectrum.largest])
    steps = steps.repeat_interleave(len(rhs)).unsqueeze(-1)
    both = torch.cat([rhs, rhs])  # one product serves both iterations
    phi = steps * both
    for _ in range(terms - 1):
        phi = phi + steps * (both - operator.matvec(phi))
    neumann, richardson = phi.chunk(2)
    return row_norm(neumann - richardson) / row_norm(richardson).clamp_min(torch.finfo(rhs.dtype).tiny)


def gradient_energy(basis: Tensor, vectors: Tensor) -> Tensor:
    """‖Q g‖² / ‖g‖² in [0, 1] for each of the vectors [K, P]; `basis` holds orthonormal rows [r, P]. Zero gives 0."""
    norm = row_norm(vectors).clamp_min(torch.finfo(vectors.dtype).tiny)
    return (row_norm(vectors @ basis.mT) / norm).square().clamp_max(1)


def curvature_probe(operator: Operator, like: Tensor, count: int = 1, seed: int = 0) -> Tensor:
    """vᵀHv for `count` Rademacher vectors, [count], of the size and kind of the vector `like`.

    One seed always gives the same vectors, so that values taken over time differ by the curvature alone.
    """
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (count, like.numel()), generator=generator) * 2 - 1
    vectors = signs.to(like)
    return row_dot(vectors, operator.matvec(vectors))


VARIANCE_DECAY = 0.9


@dataclass
class ProbeVariance:
    """Running relative variance of probe values: plain over the first ten, exponentially forgetting after."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def update(self, value: float) -> None:
        """Fold one probe value in; values that are not finite are skipped."""
        if not math.isfinite(value):
            return
        self.count += 1
        share = max(1 - VARIANCE_DECAY, 1 / self.count)
        step = value - self.mean
        self.mean += share * step
        self.variance = (1 - share) * (self.variance + share * step**2)

    @property
    def value(self) -> float:
        """Var / mean²; 0 until two values were seen, infinite for a mean of zero that varies."""
        if self.variance == 0:
            return 0.0
        return self.variance / self.mean**2 if self.mean**2 > 0 else math.inf

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "variance": self.variance}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.mean, self.variance = int(state["count"]), float(state["mean"]), float(state["variance"])
