"""Preconditioned Neumann series with adaptive truncation.

    H⁻¹ r = Σ_k (I − M⁻¹H)^k M⁻¹ r              φ = φ_0 + the series on r = g − H φ_0

Terms t_0 = M⁻¹ r, t_{k+1} = (I − M⁻¹H) t_k. After the terms 0..k the residual is M t_{k+1}, so the next term is known
from the residual and every term costs one product.

The preconditioner. With M = s·diag(H), I − M⁻¹H is similar to I − A/s, A = D^{-1/2} H D^{-1/2}, D = diag(H). The series
converges exactly when s > λ_max(A)/2, and its terms keep their sign in every eigenvector when s ≥ λ_max(A). A has a
unit diagonal, so 1 ≤ λ_max(A) ≤ P; the upper bound would be far too timid, hence a short power iteration, which
estimates from below, and a 10% margin: the factor two between the two conditions absorbs what is missing.
Without a preconditioner M = αI with α = λ_max(H), the paper's H = αI + Δ and Σ(−α⁻¹Δ)^k α⁻¹ r.

Truncation. In the norm ‖r‖_{M⁻¹} = ‖M^{-1/2} r‖ every term of a convergent series shrinks the residual (in the
Euclidean norm a wide diagonal can make it grow for a while), so growth there says that s is too small for this H: the
last term is taken back and the series ends. It also ends before a term that is more than `jump` times its
predecessor, and as soon as ‖r_v‖ ≤ tolerance · ‖g_v‖, or the budget where that is more, for every right-hand side.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.solvers.base import (
    NEUTRAL,
    Control,
    Operator,
    Solution,
    Stateless,
    Workspace,
    largest_eigenvalue,
    power_iteration,
    random_rows,
    row_norm,
    scaled,
)

POWER_ITERATIONS = 8
MARGIN = 1.1


@dataclass(frozen=True)
class Neumann(Stateless):
    """Adaptive Neumann series; the steps of its solutions are terms."""

    max_terms: int = 20
    tolerance: float = 1e-3
    jump: float = 2.0
    preconditioner: bool = True

    name = "neumann"

    def __post_init__(self) -> None:
        if not self.max_terms >= 1:
            raise SettingError(f"max_terms must be at least 1; got {self.max_terms}")
        if not 0 <= self.tolerance < 1:
            raise SettingError(f"tolerance must lie in [0, 1); got {self.tolerance}")
        if not self.jump > 1:
            raise SettingError(f"jump is the factor by which a term may grow, so it must be above 1; got {self.jump}")

    def solve(
        self, operator: Operator, rhs: Tensor, start: Tensor | None = None, control: Control = NEUTRAL
    ) -> Solution:
        work = Workspace(operator, rhs, start)
        inverse = control.step / self._diagonal(operator, work)  # M⁻¹ as a row
        target = (self.tolerance * row_norm(work.rhs)).clamp_min(control.budget)
        phi, residual = work.phi, work.residual
        term = inverse * residual
        size, term_size = work.mean_norm(inverse.sqrt() * residual), work.mean_norm(term)
        history, depth = [work.first_norm], 0
        while depth < scaled(self.max_terms, control.depth) and bool((row_norm(residual) > target).any()):
            candidate = phi + term
            left = work.residual_of(candidate)
            left_size = work.mean_norm(inverse.sqrt() * left)
            if not left_size <= size:
                break
            depth += 1
            phi, residual, size = candidate, left, left_size
            history.append(work.mean_norm(residual))
            term = inverse * residual
            previous, term_size = term_size, work.mean_norm(term)
            if not term_size <= self.jump * previous:
                break
        return work.solution(phi, residual, depth, history)

    def _diagonal(self, operator: Operator, work: Workspace) -> Tensor:
        """Diagonal of M, [P], or [1] for M = αI."""
        if not self.preconditioner:
            return work.rhs.new_tensor([largest_eigenvalue(operator)])
        diagonal = operator.diagonal().detach().to(work.rhs)
        diagonal = diagonal.clamp_min(torch.finfo(diagonal.dtype).eps * float(diagonal.max()))
        root = diagonal.rsqrt()
        start = random_rows(1, work.rhs, seed=0)
        scale = power_iteration(lambda vector: root * work.apply(root * vector), start, POWER_ITERATIONS)
        # λ_max(A) is at least the mean diagonal of A, one: a floor under an unlucky start.
        return MARGIN * max(scale, 1.0) * diagonal
