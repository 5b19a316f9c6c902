"""Richardson iteration: follow the residual.

    φ_{j+1} = φ_j + ρ (g − H φ_j)            r_{j+1} = (I − ρH) r_j,            ρ = s / λ_max,   s = `control.step`

contracts in every eigenvector with 0 < ρλ < 2. An estimate of λ_max may be too low; a step that makes the mean residual
grow is therefore undone and ρ halved.

All steps of a call are one polynomial of H, so an operator that can apply functions of its eigenvalues (K-FAC) needs
no iteration:

    φ_k = φ_0 + f_k(H) (g − H φ_0),              f_k(λ) = (1 − (1 − ρλ)^k) / λ

which is the textbook form φ_k = (1 − ρλ)^k φ_0 + f_k(λ) g. The quotient is taken through expm1 and log1p, since it
cancels for small ρλ. The bill is one product for H φ_0, one for f_k(H) and one for the honest residual.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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
    host_norms,
    largest_eigenvalue,
    scaled,
)

HALVINGS = 10


@runtime_checkable
class SpectralOperator(Protocol):
    """An operator that knows its eigenvectors: fn(H) applied to vectors, fn acting on (damped) eigenvalues."""

    def apply_function(self, vectors: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor: ...


@dataclass(frozen=True)
class Richardson(Stateless):
    """Warm-started Richardson steps. `history` has one entry per step; start and end only for the closed form."""

    steps: int = 5

    name = "richardson"

    def __post_init__(self) -> None:
        if not self.steps >= 1:
            raise SettingError(f"steps must be at least 1; got {self.steps}")

    def solve(
        self, operator: Operator, rhs: Tensor, start: Tensor | None = None, control: Control = NEUTRAL
    ) -> Solution:
        work = Workspace(operator, rhs, start)
        rho, steps = control.step / largest_eigenvalue(operator), scaled(self.steps, control.depth)
        if isinstance(operator, SpectralOperator):
            return _closed_form(operator, work, rho, steps)
        return _iterate(work, rho, steps)


def _iterate(work: Workspace, rho: float, steps: int) -> Solution:
    phi, residual = work.phi, work.residual
    history = [work.first_norm]
    for _ in range(steps):
        candidate = phi + rho * residual
        left = work.residual_of(candidate)
        norm = work.mean_norm(left)
        if norm <= history[-1]:
            phi, residual = candidate, left
            history.append(norm)
        else:
            rho /= 2
            history.append(history[-1])
    return work.solution(phi, residual, steps, history)


def _closed_form(operator: SpectralOperator, work: Workspace, rho: float, steps: int) -> Solution:
    before = work.first_norm
    for _ in range(HALVINGS):
        work.products += len(work.residual)
        phi = work.phi + operator.apply_function(work.residual, _richardson_polynomial(rho, steps)).detach()
        residual = work.residual_of(phi)
        norms = host_norms(phi, residual)
        after = work.mean(norms[1])
        if after <= before:
            return work.solution(phi, residual, steps, [before, after], norms)
        rho /= 2
    return work.solution(work.phi, work.residual, steps, [before, before])


def _richardson_polynomial(rho: float, steps: int) -> Callable[[Tensor], Tensor]:
    def f(eigenvalues: Tensor) -> Tensor:
        share = rho * eigenvalues
        # 1 − (1 − ρλ)^k, which cancels for small ρλ unless it is taken by way of the logarithm.
        solved = torch.where(share <= 1, -torch.expm1(steps * torch.log1p(-share)), 1 - (1 - share) ** steps)
        return solved / eigenvalues

    return f
