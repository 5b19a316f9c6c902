"""Richardson iteration: follow the residual.

    φ_{j+1} = φ_j + ρ (g − H φ_j)            r_{j+1} = (I − ρH) r_j,            ρ = s / λ_max,   s = `control.step`

contracts in every eigenvector with 0 < ρλ < 2. An estimate of λ_max may be too low; a step that makes the mean residual
grow is therefore undone and ρ halved.

With `decay` p the step is ρ_t = s t⁻ᵖ / λ_max, t counting the steps of all calls: Σ ρ_t diverges and Σ ρ_t² does not
for ½ < p ≤ 1, as Robbins and Monro ask where H and g are noisy. With a budget (`control.budget`) a right-hand side is
left alone once its residual is that small, or when a step does not shrink it: that step is taken back.

Otherwise all steps of a call are one polynomial of H, so an operator that can apply functions of its eigenvalues
(K-FAC) needs no iteration:

    φ_k = φ_0 + f_k(H) (g − H φ_0),              f_k(λ) = (1 − (1 − ρλ)^k) / λ

which is the textbook form φ_k = (1 − ρλ)^k φ_0 + f_k(λ) g. The quotient is taken through expm1 and log1p, since it
cancels for small ρλ. The bill is one product for H φ_0, one for f_k(H) and one for the honest residual.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

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
    host_norms,
    largest_eigenvalue,
    row_norm,
    scaled,
)

HALVINGS = 10


@runtime_checkable
class SpectralOperator(Protocol):
    """An operator that knows its eigenvectors: fn(H) applied to vectors, fn acting on (damped) eigenvalues."""

    def apply_function(self, vectors: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor: ...


@dataclass
class _Clock:
    steps: int = 0


@dataclass(frozen=True)
class Richardson:
    """Warm-started Richardson steps. `history` has one entry per step; start and end only for the closed form."""

    steps: int = 5
    decay: float = 0.0
    _clock: _Clock = field(default_factory=_Clock, init=False, repr=False, compare=False)

    name = "richardson"

    def __post_init__(self) -> None:
        if not self.steps >= 1:
            raise SettingError(f"steps must be at least 1; got {self.steps}")
        if not (self.decay == 0 or 0.5 < self.decay <= 1):
            raise SettingError(f"decay must be 0 or lie in (0.5, 1]; got {self.decay}")

    def solve(
        self, operator: Operator, rhs: Tensor, start: Tensor | None = None, control: Control = NEUTRAL
    ) -> Solution:
        work = Workspace(operator, rhs, start)
        rho, steps = control.step / largest_eigenvalue(operator), scaled(self.steps, control.depth)
        if control.budget > 0:
            return _within_budget(work, self._rates(rho, steps), control.budget)
        if isinstance(operator, SpectralOperator) and self.decay == 0:
            return _closed_form(operator, work, rho, steps)
        return _iterate(work, self._rates(rho, steps))

    def _rates(self, rho: float, steps: int) -> list[float]:
        """ρ_t of the next steps."""
        first, self._clock.steps = self._clock.steps + 1, self._clock.steps + steps
        return [rho * (first + step) ** -self.decay for step in range(steps)]

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.name, "steps": self._clock.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_state(state, self.name)
        self._clock.steps = int(state["steps"])


def _within_budget(work: Workspace, rates: list[float], budget: float) -> Solution:
    """Each row until its residual is small enough or a step does not shrink it."""
    phi, residual = work.phi.clone(), work.residual.clone()
    norm, history = row_norm(residual), [work.first_norm]
    active = norm > budget
    for rho in rates:
        rows = active.nonzero().squeeze(1)
        if not len(rows):
            break
        candidate = phi[rows] + rho * residual[rows]
        left = work.rhs[rows] - work.apply(candidate)
        size = row_norm(left)
        shrunk = size < norm[rows]
        kept = rows[shrunk]
        phi[kept], residual[kept], norm[kept] = candidate[shrunk], left[shrunk], size[shrunk]
        active[rows] = shrunk & (size > budget)
        history.append(work.mean_norm(residual))
    return work.solution(phi, residual, len(history) - 1, history)


def _iterate(work: Workspace, rates: list[float]) -> Solution:
    phi, residual, factor = work.phi, work.residual, 1.0
    history = [work.first_norm]
    for rate in rates:
        candidate = phi + factor * rate * residual
        left = work.residual_of(candidate)
        norm = work.mean_norm(left)
        if norm <= history[-1]:
            phi, residual = candidate, left
            history.append(norm)
        else:
            factor /= 2
            history.append(history[-1])
    return work.solution(phi, residual, len(rates), history)


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
