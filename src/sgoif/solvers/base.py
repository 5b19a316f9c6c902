"""What every solver offers: better φ with H φ = g for many right-hand sides at once, and the residual it leaves.

    r_v = g_v − H φ_v        one row per anchor v; φ, g, r are [K, P]

Solvers never look inside the operator. `Control` carries what the stability controller wants of the next call.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from sgoif.curvature.base import Spectrum
from sgoif.errors import NonFiniteError, SettingError, StateError


class Products(Protocol):
    """A symmetric positive definite operator on [K, P] vectors that is known by its products alone."""

    def matvec(self, vectors: Tensor) -> Tensor: ...


class Operator(Products, Protocol):
    """One that is known better, as every `Curvature` is."""

    def diagonal(self) -> Tensor: ...

    def spectrum(self) -> Spectrum: ...


@dataclass(frozen=True)
class Control:
    """Steering by the stability controller; the defaults change nothing."""

    depth: float = 1.0
    """Factor on the number of iterations or terms."""
    step: float = 1.0
    """Factor in (0, 1] on the step size."""
    rank: float = 1.0
    """Factor on the rank of subspaces and sketches."""
    budget: float = 0.0
    """Residual norm at which a right-hand side is solved."""


NEUTRAL = Control()


class Norms(NamedTuple):
    """‖g_v‖, ‖φ_v‖ and ‖r_v‖, [K] each, on the host."""

    rhs: Tensor
    phi: Tensor
    residual: Tensor


@dataclass
class Solution:
    """φ, the residual, and what they cost."""

    phi: Tensor
    residual: Tensor
    """g − H φ at the returned φ, [K, P]."""
    norms: Norms
    """As solved: whoever changes rows of φ afterwards changes their norms."""
    products: int
    """Curvature-vector products used: one per vector and application of H."""
    steps: int
    history: list[float] = field(default_factory=list)
    """Mean residual norm over the right-hand sides after each step, the start first."""


class Solver(Protocol):
    """One way to refine φ."""

    name: str

    def solve(
        self, operator: Operator, rhs: Tensor, start: Tensor | None = None, control: Control = ...
    ) -> Solution: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Stateless:
    """A solver that carries nothing from call to call."""

    name: str

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_state(state, self.name)


class Workspace:
    """One call of a solver in flight: clean right-hand sides, where φ starts, and the bill.

    Rows never see each other. A right-hand side whose norm is not finite is *dead*: it is solved as zero, left out of
    every mean, and comes back with its start and a residual of NaN. A start that is not finite, or that overflows
    under H, begins again at zero, and a row that overflows on the way returns to its start, so no φ is ever poisoned.
    """

    def __init__(self, operator: Products, rhs: Tensor, start: Tensor | None) -> None:
        if rhs.ndim != 2:
            raise SettingError(f"right-hand sides must be [K, P]; got a tensor of shape {tuple(rhs.shape)}")
        if start is not None and start.shape != rhs.shape:
            raise SettingError(
                f"the start {tuple(start.shape)} and the right-hand sides {tuple(rhs.shape)} differ in shape"
            )
        self.operator = operator
        self.products = 0
        rhs = rhs.detach()
        if start is None:  # the residual is g itself: no product is spent on H · 0
            start, residual = torch.zeros_like(rhs), rhs.clone()
        else:
            start = start.detach().to(rhs.dtype)
            residual = rhs - self.apply(start)
        self._rhs_norm, started, left = host_norms(rhs, start, residual)
        self.alive, begun = self._rhs_norm.isfinite(), started.isfinite()
        """Rows whose right-hand side is finite, and those whose start is; masks on the host."""
        sound = self.alive & begun & left.isfinite()
        self.rhs = select_rows(self.alive, rhs, 0.0)
        self._kept = select_rows(begun, start, 0.0)
        self.phi = select_rows(sound, start, 0.0)
        self.residual = select_rows(sound, residual, self.rhs)
        self.first_norm = self.mean(torch.where(sound, left, self._rhs_norm))
        """Mean norm of `residual`."""

    def apply(self, vectors: Tensor) -> Tensor:
        """H applied to vectors, counted."""
        self.products += len(vectors)
        return self.operator.matvec(vectors).detach()

    def residual_of(self, phi: Tensor) -> Tensor:
        """The residual g − H φ, at one product per row."""
        return self.rhs - self.apply(phi)

    def mean_norm(self, residual: Tensor) -> float:
        """Mean residual norm over the rows that are alive; not finite as soon as one of them overflows."""
        return self.mean(host_norms(residual)[0])

    def mean(self, norms: Tensor) -> float:
        """The same of norms [K] that are known on the host."""
        return float(norms[self.alive].mean()) if bool(self.alive.any()) else 0.0

    def solution(
        self, phi: Tensor, residual: Tensor, steps: int, history: list[float], norms: Tensor | None = None
    ) -> Solution:
        """What a solver gives back; `norms` are those of φ and of the residual where it knows them, [2, K]."""
        norms = host_norms(phi, residual) if norms is None else norms
        sound = norms.isfinite().all(0)
        if not bool((sound & self.alive).all()):
            phi = select_rows(self.alive, select_rows(sound, phi, self.phi), self._kept)
            residual = select_rows(self.alive, select_rows(sound, residual, self.residual), torch.nan)
            norms = host_norms(phi, residual)
        return Solution(phi, residual, Norms(self._rhs_norm, *norms), self.products, steps, history)


def row_norm(vectors: Tensor) -> Tensor:
    """Euclidean norms of the rows, [K]."""
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return norms


def host_norms(*vectors: Tensor) -> Tensor:
    """Norms of the rows of each of these [K, P], one below the other on the host: one wait for the device for all."""
    return torch.stack([row_norm(rows) for rows in vectors]).cpu()


def row_dot(left: Tensor, right: Tensor) -> Tensor:
    """Inner products of matching rows, [K]."""
    return (left * right).sum(-1)


def select_rows(mask: Tensor, chosen: Tensor, otherwise: Tensor | float) -> Tensor:
    """Rows of `chosen` where the mask (on the host) holds, of `otherwise` elsewhere; no copy where it holds for all."""
    return chosen if bool(mask.all()) else torch.where(mask.to(chosen.device).unsqueeze(-1), chosen, otherwise)


def scaled(count: int, factor: float) -> int:
    """A number of iterations, terms or columns after steering; never below one unless it was switched off (zero)."""
    return max(1, round(count * factor)) if count else 0


def random_rows(count: int, like: Tensor, seed: int) -> Tensor:
    """Standard normal rows [count, P], the same on every device; the global generator is not touched."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, like.shape[-1], generator=generator, dtype=torch.float32).to(like)


def orthonormal_rows(rows: Tensor) -> Tensor:
    """An orthonormal basis of the span of the rows, as rows (filled up where they are dependent)."""
    basis: Tensor = torch.linalg.qr(rows.mT).Q
    return basis.mT


def power_iteration(matvec: Callable[[Tensor], Tensor], start: Tensor, iterations: int) -> float:
    """Lower estimate of the largest eigenvalue of a symmetric positive semi-definite map on [1, P]."""
    vector, value = start, 0.0
    for _ in range(iterations):
        vector = matvec(vector / torch.linalg.vector_norm(vector).clamp_min(torch.finfo(start.dtype).tiny))
        value = float(torch.linalg.vector_norm(vector))
    return value


def require_finite(products: Tensor) -> None:
    """Raise where products with the curvature are not finite."""
    if not bool(products.isfinite().all()):
        raise NonFiniteError(
            "curvature products are infinite or NaN, expected finite numbers; "
            "its last update probably held infinite or NaN gradients"
        )


def largest_eigenvalue(operator: Operator) -> float:
    """λ_max as the operator reports it, refused where no step size can be made of it."""
    largest = operator.spectrum().largest
    if not (math.isfinite(largest) and largest > 0):
        raise NonFiniteError(
            f"the curvature reports {largest} as its largest eigenvalue, expected a positive finite number; "
            "its last update probably held infinite or NaN gradients"
        )
    return largest


def check_state(state: dict[str, Any], name: str) -> None:
    """Raise unless the state was saved by the solver of that name."""
    if state.get("name") != name:
        raise StateError(
            f"the saved solver is {state.get('name')!r}, this monitor uses {name!r}; resume with the same setting"
        )
