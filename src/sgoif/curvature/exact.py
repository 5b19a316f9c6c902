"""Exact curvature products on one fixed batch.

With z = output(w) the logits of the batch at the flat weights w and ℓ = loss(z) its mean loss,

    GGN       v ↦ Jᵀ (∇²_z ℓ) J v + λv,    J = ∂z/∂w          positive semidefinite plus λ when ℓ is convex in z
    Hessian   v ↦ ∇²_w ℓ v + λv                               indefinite far from a minimum: λ must make up for that

Neither is ever formed unless `dense` or `solve` asks for it. λ is absolute here, not a share of the mean diagonal.
Computation runs in the type and on the device of `point`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap

from sgoif.core.precision import full_precision
from sgoif.curvature.base import Spectrum
from sgoif.errors import SettingError

# Largest number of weights for which a dense matrix is made without being asked for.
DENSE_LIMIT = 4096
PROBES = 64
LANCZOS_STEPS = 40


def pull_back(function: Callable[..., Any], at: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The value of a function at a point, and the product with its transposed Jacobian there."""
    evaluated: tuple[Any, ...] = vjp(function, at)

    def product(vector: Tensor) -> Tensor:
        result: Tensor = evaluated[1](vector)[0]
        return result

    return evaluated[0], product


def lanczos(matvec: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> tuple[float, float]:
    """Lowest and highest Ritz value, each moved outwards by its residual norm."""
    basis = [start / start.norm()]
    alphas: list[Tensor] = []
    betas: list[Tensor] = []
    for _ in range(min(steps, start.numel())):
        vector = matvec(basis[-1][None])[0]
        alphas.append(vector @ basis[-1])
        # Full orthogonalisation, twice: without it converged Ritz values come back as ghosts.
        known = torch.stack(basis)
        for _ in range(2):
            vector = vector - (vector @ known.T) @ known
        betas.append(vector.norm())
        if betas[-1] <= 1e-6 * torch.stack(alphas).abs().max():
            break
        basis.append(vector / betas[-1])
    off = (
        torch.stack(betas[:-1]).double() if len(betas) > 1 else torch.zeros(0, dtype=torch.float64, device=start.device)
    )
    tridiagonal = torch.diag(torch.stack(alphas).double()) + torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(tridiagonal.cpu())
    residuals = vectors[-1].abs() * float(betas[-1])
    return float(values[0] - residuals[0]), float(values[-1] + residuals[-1])


class _ExactOperator(ABC):
    """What the two operators share: everything but the product with one vector."""

    def __init__(
        self,
        output: Callable[[Tensor], Tensor],
        loss: Callable[[Tensor], Tensor],
        point: Tensor,
        damping: float,
        *,
        chunk: int = 32,
    ) -> None:
        if not damping >= 0:
            raise SettingError(f"damping is an absolute λ here and must not be negative; got {damping}")
        if point.ndim != 1:
            raise SettingError(f"point must be a flat vector of weights [P]; got shape {tuple(point.shape)}")
        if chunk < 1:
            raise SettingError(f"chunk must be at least 1 vector; got {chunk}")
        self.output = output
        self.loss = loss
        self.point = point.detach()
        self.damping = damping
        self.chunk = chunk
        self._dense: Tensor | None = None
        self._cholesky: Tensor | None = None
        self._spectrum: Spectrum | None = None

    @property
    def device(self) -> torch.device:
        return self.point.device

    @property
    def size(self) -> int:
        """P."""
        return self.point.numel()

    @full_precision
    def matvec(self, vectors: Tensor) -> Tensor:
        """(H + λI) applied to each of the vectors [K, P], `chunk` of them at a time."""
        vectors = vectors.to(self.point)
        if not len(vectors):
            return vectors
        products: Tensor = vmap(self._linearise(), chunk_size=self.chunk)(vectors)
        return products + self.damping * vectors

    @full_precision
    def dense(self) -> Tensor:
        """H + λI as a matrix [P, P]: P products, computed once."""
        if self._dense is None:
            matrix = self.matvec(torch.eye(self.size).to(self.point))
            self._dense = (matrix + matrix.T) / 2
        return self._dense

    @full_precision
    def solve(self, vectors: Tensor) -> Tensor:
        """(H + λI)⁻¹ applied to vectors [K, P], by a dense Cholesky factor."""
        if self.size > DENSE_LIMIT:
            raise SettingError(
                f"a dense solve with {self.size} weights is too large (limit {DENSE_LIMIT}); "
                "use the conjugate gradient solver"
            )
        if self._cholesky is None:
            factor, failed = torch.linalg.cholesky_ex(self.dense().cpu().double())
            if int(failed):
                raise SettingError(
                    f"the curvature plus damping {self.damping} is not positive definite (smallest eigenvalue "
                    f"{self.spectrum().smallest:.3g}); raise the damping, or use ExactGGN"
                )
            self._cholesky = factor
        return torch.cholesky_solve(vectors.cpu().double().T, self._cholesky).T.to(self.point)

    @full_precision
    def diagonal(self) -> Tensor:
        """Diagonal of H + λI, [P]; beyond `DENSE_LIMIT` weights an estimate (Hutchinson), never below λ."""
        if self.size <= DENSE_LIMIT:
            return self.dense().diagonal().clone()
        signs = torch.randint(0, 2, (PROBES, self.size), generator=torch.Generator().manual_seed(0)) * 2 - 1
        total = torch.zeros_like(self.point)
        for start in range(0, PROBES, self.chunk):
            probes = signs[start : start + self.chunk].to(self.point)
            total += (probes * self.matvec(probes)).sum(0)
        return (total / PROBES).clamp_min(self.damping)

    @full_precision
    def spectrum(self) -> Spectrum:
        """Exact up to `DENSE_LIMIT` weights, Lanczos beyond; `smallest` is negative for an indefinite Hessian."""
        if self._spectrum is None:
            if self.size <= DENSE_LIMIT:
                values = torch.linalg.eigvalsh(self.dense().cpu().double())
                self._spectrum = Spectrum(float(values[0]), float(values[-1]))
            else:
                start = torch.randn(self.size, generator=torch.Generator().manual_seed(0)).to(self.point)
                self._spectrum = self._bound(*lanczos(self.matvec, start, LANCZOS_STEPS))
        return self._spectrum

    def _bound(self, smallest: float, largest: float) -> Spectrum:
        """The spectrum, given Lanczos bounds."""
        return Spectrum(smallest, largest)

    @abstractmethod
    def _linearise(self) -> Callable[[Tensor], Tensor]:
        """The map v ↦ H v, without damping, for one vector [P]."""


class ExactGGN(_ExactOperator):
    """Generalised Gauss-Newton matrix of a batch, plus λ."""

    def _linearise(self) -> Callable[[Tensor], Tensor]:
        logits, transposed_jacobian = pull_back(self.output, self.point)
        # ∇²ℓ is symmetric, so reverse over reverse does: many losses have no forward-mode derivative of their gradient.
        _, loss_hessian = pull_back(grad(self.loss), logits)

        def product(vector: Tensor) -> Tensor:
            change: Tensor = jvp(self.output, (self.point,), (vector,))[1]
            return transposed_jacobian(loss_hessian(change))

        return product

    def _bound(self, smallest: float, largest: float) -> Spectrum:
        # The matrix is positive semidefinite, so λ is a bound that no Ritz value improves on safely.
        return Spectrum(self.damping, largest)


class ExactHessian(_ExactOperator):
    """Hessian of a batch's mean loss, plus λ."""

    def _linearise(self) -> Callable[[Tensor], Tensor]:
        def objective(weights: Tensor) -> Tensor:
            return self.loss(self.output(weights))

        return pull_back(grad(objective), self.point)[1]
