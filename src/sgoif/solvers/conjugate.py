"""Short preconditioned conjugate gradients, all right-hand sides in one recursion.

Each row v has its own α_v, β_v; a row whose residual is below `tolerance`·‖g_v‖ or the budget, or whose recursion
breaks down (pᵀHp ≤ 0, rᵀz ≤ 0: it is exact already, or rounding is all that is left), freezes and costs no more.

Randomised Nyström preconditioner. From ℓ = `sketch` orthonormal random rows Ω and Y = H Ω,

    Ĥ = (Y + νΩ)ᵀ (Ω(Y + νΩ)ᵀ)⁻¹ (Y + νΩ) − νI  =  U Λ̂ Uᵀ,      ν = ε‖Y‖_F       (the shift keeps the core positive)
    P⁻¹ = μ U Λ̂⁻¹ Uᵀ + (I − UUᵀ),                                μ = λ̂_ℓ         (the smallest sketched eigenvalue)

flattens the ℓ leading eigenvalues to the level μ of the rest. The sketch costs ℓ products however many right-hand
sides there are. The method is Frangella, Tropp and Udell (2021); H here is damped already, so nothing is added.

The step of conjugate gradients is optimal by itself, so `control.step` has no meaning here. What falls monotonically is
the error in the norm of H, not the residual. The residual returned is g − Hφ computed anew, not the recursion's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.solvers.base import (
    NEUTRAL,
    Control,
    Products,
    Solution,
    Stateless,
    Workspace,
    orthonormal_rows,
    random_rows,
    require_finite,
    row_dot,
    row_norm,
    scaled,
)


@dataclass(frozen=True)
class ConjugateGradient(Stateless):
    """At most `iterations` steps; `sketch` 0 switches the preconditioner off."""

    iterations: int = 10
    tolerance: float = 1e-4
    sketch: int = 16
    seed: int = 0

    name = "conjugate"

    def __post_init__(self) -> None:
        if not self.iterations >= 1:
            raise SettingError(f"iterations must be at least 1; got {self.iterations}")
        if not 0 <= self.tolerance < 1:
            raise SettingError(f"tolerance must lie in [0, 1); got {self.tolerance}")
        if not self.sketch >= 0:
            raise SettingError(f"sketch is a rank, 0 for none; got {self.sketch}")

    def solve(
        self, operator: Products, rhs: Tensor, start: Tensor | None = None, control: Control = NEUTRAL
    ) -> Solution:
        work = Workspace(operator, rhs, start)
        target = (self.tolerance * row_norm(work.rhs)).clamp_min(control.budget)
        history = [work.first_norm]
        active = row_norm(work.residual) > target
        if not bool(active.any()):
            return work.solution(work.phi, work.residual, 0, history)

        precondition = self._preconditioner(work, min(scaled(self.sketch, control.rank), rhs.shape[-1]))
        phi, residual = work.phi.clone(), work.residual.clone()
        direction = precondition(residual).clone()  # without a sketch it would be the residual itself
        energy = row_dot(residual, direction)  # rᵀz
        active &= energy > 0
        steps = 0
        while steps < scaled(self.iterations, control.depth) and bool(active.any()):
            steps += 1
            rows = active.nonzero().squeeze(-1)
            p = direction[rows]
            product = work.apply(p)
            curvature = row_dot(p, product)
            sound = curvature.isfinite() & (curvature > 0)
            alpha = torch.where(sound, energy[rows] / curvature, 0).unsqueeze(-1)
            phi[rows] = phi[rows] + alpha * p
            r = residual[rows] - alpha * torch.where(sound.unsqueeze(-1), product, 0)
            z = precondition(r)
            previous, energy[rows] = energy[rows], row_dot(r, z)
            residual[rows], direction[rows] = r, z + (energy[rows] / previous).unsqueeze(-1) * p
            active[rows] = sound & (row_norm(r) > target[rows]) & (energy[rows] > 0)
            history.append(work.mean_norm(residual))
        solution = work.solution(phi, work.residual_of(phi) if steps else residual, steps, history)
        history[-1] = work.mean(solution.norms.residual)
        return solution

    def _preconditioner(self, work: Workspace, rank: int) -> Callable[[Tensor], Tensor]:
        if rank == 0:
            return lambda vectors: vectors
        values, vectors = _nystrom(work, rank, self.seed)
        scale = values[-1] / values - 1
        return lambda rows: rows + ((rows @ vectors.mT) * scale) @ vectors


def _nystrom(work: Workspace, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues (falling) and orthonormal eigenvectors, as rows, of the Nyström approximation of H."""
    omega = orthonormal_rows(random_rows(rank, work.rhs, seed))
    image = work.apply(omega)
    eps = torch.finfo(image.dtype).eps
    shift = eps * float(torch.linalg.matrix_norm(image))
    image = image + shift * omega
    core = (omega @ image.mT).cpu().double()
    require_finite(core)
    # An eigen-decomposition takes the inverse root of a core that is singular to rounding, where Cholesky would fail.
    weights, rotation = torch.linalg.eigh((core + core.mT) / 2)
    inverse_root = rotation / weights.clamp_min(eps * float(weights[-1])).sqrt()
    # SVD of the [ℓ, P] factor through its QR, so that only an ℓ × ℓ matrix is decomposed iteratively.
    q, upper = torch.linalg.qr((inverse_root.mT.to(image) @ image).mT)
    left, singular, _ = torch.linalg.svd(upper.cpu().double())
    values = (singular.square() - shift).clamp_min(eps * float(singular[0]) ** 2)
    return values.to(image), (q @ left.to(image)).mT
