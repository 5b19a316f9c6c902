"""Low-rank split φ = Qᵀa + u: dominant curvature solved exactly, the rest by short iterations.

Q [r, P] holds orthonormal rows that follow the dominant eigenspace of H from call to call: a few block power steps
Q ← orth(H Q), warm-started from the last basis, then Rayleigh–Ritz, after which T = Q H Qᵀ = diag(θ). W = H Q is kept.

    coarse solve        a = T⁻¹ Q r,   φ ← φ + Qᵀa,   r ← r − Wᵀa          so that Q r = 0; no product with H
    refinement of u     φ ← φ + ρ r,   r ← g − H φ                          one product, along r ⟂ Q

alternate. One round takes r with Q r = 0 to

    (I − ρB) r,     B = H − H Qᵀ T⁻¹ Q H      symmetric, B Qᵀ = 0, the Schur complement of H on the rest.

Its rate is set by the spectrum of B, that is by what lies below the r-th eigenvalue, and with ρ ≤ 1/λ_max(B) residuals
fall monotonically even for a poor Q: a poor basis costs speed, never correctness. λ_max(B) comes from a short power
iteration, guarded as in Richardson. For an invariant Q the coarse part is the paper's a = (QᵀHQ)⁻¹Qᵀg; otherwise it
also carries the coupling −T⁻¹ Q H u, without which the split would converge to something else than H⁻¹g.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.solvers.base import (
    NEUTRAL,
    Control,
    Operator,
    Solution,
    Workspace,
    check_state,
    orthonormal_rows,
    power_iteration,
    random_rows,
    require_finite,
    row_norm,
    scaled,
)

POWER_ITERATIONS = 6
MARGIN = 1.1


@dataclass
class _Memory:
    basis: Tensor | None = None
    energy: float = 0.0


@dataclass(frozen=True)
class _Coarse:
    """Basis Q, its image W = H Q and the Ritz values θ."""

    basis: Tensor
    image: Tensor
    ritz: Tensor

    def correct(self, phi: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        a = (residual @ self.basis.mT) / self.ritz
        return phi + a @ self.basis, residual - a @ self.image

    def schur(self, vectors: Tensor, product: Tensor) -> Tensor:
        """B v from v and H v."""
        return product - ((vectors @ self.image.mT) / self.ritz) @ self.image


@dataclass(frozen=True)
class LowRankSplit:
    """`rank` directions solved exactly, `inner` refinement steps, `power` block power steps on the basis per call.

    A basis without a past gets `power` + 4 steps. `last_energy` is ‖Qg‖²/‖g‖² of the last call, averaged over its
    right-hand sides: the share of the gradients that the basis sees.
    """

    rank: int = 16
    inner: int = 5
    power: int = 1
    seed: int = 0
    _memory: _Memory = field(default_factory=_Memory, init=False, repr=False, compare=False)

    name = "subspace"

    def __post_init__(self) -> None:
        for option, least in (("rank", 1), ("inner", 1), ("power", 0)):
            if not getattr(self, option) >= least:
                raise SettingError(f"{option} must be at least {least}; got {getattr(self, option)}")

    @property
    def basis(self) -> Tensor | None:
        """Orthonormal rows [r, P] in the order of falling Ritz values, or None before the first call."""
        return self._memory.basis

    @property
    def last_energy(self) -> float:
        return self._memory.energy

    def solve(
        self, operator: Operator, rhs: Tensor, start: Tensor | None = None, control: Control = NEUTRAL
    ) -> Solution:
        work = Workspace(operator, rhs, start)
        coarse = self._refresh(work, min(scaled(self.rank, control.rank), rhs.shape[-1]))
        self._memory.energy = _energy(coarse.basis, work.rhs[work.alive])
        probe = random_rows(1, rhs, self.seed)
        largest = power_iteration(lambda vector: coarse.schur(vector, work.apply(vector)), probe, POWER_ITERATIONS)
        # B vanishes when the basis is everything there is; rounding in H then sets a harmless scale.
        rho = control.step / (MARGIN * max(largest, torch.finfo(rhs.dtype).eps * float(coarse.ritz[0])))

        history = [work.first_norm]
        phi, residual = coarse.correct(work.phi, work.residual)
        norm = work.mean_norm(residual)
        steps = scaled(self.inner, control.depth)
        for _ in range(steps):
            if control.budget and not bool((row_norm(residual) > control.budget).any()):
                break
            candidate = phi + rho * residual
            candidate, left = coarse.correct(candidate, work.residual_of(candidate))
            left_norm = work.mean_norm(left)
            if left_norm <= norm:
                phi, residual, norm = candidate, left, left_norm
            else:
                rho /= 2
            history.append(norm)
        return work.solution(phi, residual, len(history) - 1, history)

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.name, "basis": None if self.basis is None else self.basis.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_state(state, self.name)
        self._memory.basis = None if state["basis"] is None else state["basis"].clone()

    def _refresh(self, work: Workspace, rank: int) -> _Coarse:
        basis, fresh = random_rows(rank, work.rhs, self.seed), 4
        known = self._memory.basis
        if known is not None and known.shape[-1] == basis.shape[-1]:
            known = known[:rank].to(basis)
            fresh = 0 if len(known) == rank else fresh
            basis = torch.cat([known, basis[len(known) :]])
        basis = orthonormal_rows(basis)
        image = work.apply(basis)
        for _ in range(self.power + fresh):
            basis = orthonormal_rows(image)
            image = work.apply(basis)
        projected = (basis @ image.mT).cpu().double()
        self._memory.basis = None  # until there is a better one
        require_finite(projected)
        ritz, rotation = torch.linalg.eigh((projected + projected.mT) / 2)
        ritz, rotation = ritz.flip(-1).to(basis), rotation.flip(-1).to(basis)
        ritz = ritz.clamp_min(torch.finfo(ritz.dtype).eps * float(ritz[0]))
        coarse = _Coarse(rotation.mT @ basis, rotation.mT @ image, ritz)
        self._memory.basis = coarse.basis
        return coarse


def _energy(basis: Tensor, rhs: Tensor) -> float:
    norm = row_norm(rhs)
    rhs, norm = rhs[norm > 0], norm[norm > 0]
    return float(((row_norm(rhs @ basis.mT) / norm) ** 2).mean()) if len(rhs) else 0.0
