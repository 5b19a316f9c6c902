"""Richardson iteration: follow the residual.

    φ_{j+1} = φ_j + ρ_j (g − H φ_j)            r_{j+1} = (I − ρ_j H) r_j

contracts in every eigenvector with 0 < ρ_j λ < 2. Two schedules of the step ρ_j:

    spectral        ρ_j = s / λ_max                        s = `control.step` in (0, 1]
    robbins-monro   ρ_j = s / λ_max / (1 + t)^0.6          t counts steps over all calls: Σρ = ∞, Σρ² < ∞

The first is right for an operator that changes slowly, the second averages the noise of one that changes with every
batch. An estimate of λ_max may be too low; a step that makes the mean residual grow is therefore undone and ρ halved.

All steps of a call are one polynomial of H, so an operator that can apply functions of its eigenvalues (K-FAC) needs
no iteration. With f_0 = 0 and f_{j+1}(λ) = f_j(λ) + ρ_j (1 − λ f_j(λ)),

    φ_k = φ_0 + f_k(H) (g − H φ_0)              constant ρ:  f_k(λ) = (1 − (1 − ρλ)^k) / λ

which is the textbook form φ_k = (1 − ρλ)^k φ_0 + f_k(λ) g. The quotient is taken through expm1 and log1p, since it
cancels for small ρλ; a varying ρ takes the recursion. The bill is one product for H φ_0, one for f_k(H) and one for the
honest residual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args, runtime_checkable

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
    scaled,
)

Schedule = Literal["spectral", "robbins-monro"]

DECAY = 0.6
HALVINGS = 10


@runtime_checkable
class SpectralOperator(Protocol):
    """An operator that knows its eigenvectors: fn(H) applied to vectors, fn acting on (damped) eigenvalues."""

    def apply_function(self, vectors: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor: ...


@dataclass
class _Memory:
    t: int = 0


@dataclass(frozen=True)
class Richardson:
    """Warm-started Richardson steps. `history` has one entry per step; start and end only for the closed form."""

    steps: int = 5
    schedule: Schedule = "spectral"
    _memory: _Memory = field(default_factory=_Memory, init=False, repr=False, compare=False)

    name = "richardson"

    def __post_init__(self) -> None:
        if not self.steps >= 1:
            raise SettingError(f"steps must be at least 1; got {self.steps}")
        if self.schedule not in get_args(Schedule):
            raise SettingError(f"unknown schedule {self.schedule!r}; choose one of {', '.join(get_args(Schedule))}")

    def solve(
        self, operator: Operator, rhs: Tensor, start: Tensor | None = None, control: Control = NEUTRAL
    ) -> Solution:
        work = Workspace(operator, rhs, start)
        rates = self._rates(control.step / largest_eigenvalue(operator), scaled(self.steps, control.depth))
        self._memory.t += len(rates)
        if isinstance(operator, SpectralOperator):
            return _closed_form(operator, work, rates)
        return _iterate(work, rates)

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.name, "t": self._memory.t}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_state(state, self.name)
        self._memory.t = int(state["t"])

    def _rates(self, rho: float, steps: int) -> list[float]:
        if self.schedule == "spectral":
            return [rho] * steps
        return [rho / (1 + t) ** DECAY for t in range(self._memory.t, self._memory.t + steps)]


def _iterate(work: Workspace, rates: list[float]) -> Solution:
    phi, residual = work.phi, work.residual
    history, shrink = [work.first_norm], 1.0
    for rho in rates:
        candidate = phi + shrink * rho * residual
        left = work.residual_of(candidate)
        norm = work.mean_norm(left)
        if norm <= history[-1]:
            phi, residual = candidate, left
            history.append(norm)
        else:
            shrink /= 2
            history.append(history[-1])
    return work.solution(phi, residual, len(rates), history)


def _closed_form(operator: SpectralOperator, work: Workspace, rates: list[float]) -> Solution:
    before, shrink = work.first_norm, 1.0
    for _ in range(HALVINGS):
        polynomial = _richardson_polynomial([shrink * rho for rho in rates])
        work.products += len(work.residual)
        phi = work.phi + operator.apply_function(work.residual, polynomial).detach()
        residual = work.residual_of(phi)
        norms = host_norms(phi, residual)
        after = work.mean(norms[1])
        if after <= before:
            return work.solution(phi, residual, len(rates), [before, after], norms)
        shrink /= 2
    return work.solution(work.phi, work.residual, len(rates), [before, before])


def _richardson_polynomial(rates: list[float]) -> Callable[[Tensor], Tensor]:
    def f(eigenvalues: Tensor) -> Tensor:
        if len(set(rates)) == 1:
            share, steps = rates[0] * eigenvalues, len(rates)
            # 1 − (1 − ρλ)^k, which cancels for small ρλ unless it is taken by way of the logarithm.
            solved = torch.where(share <= 1, -torch.expm1(steps * torch.log1p(-share)), 1 - (1 - share) ** steps)
            return solved / eigenvalues
        value = torch.zeros_like(eigenvalues)
        for rho in rates:
            value = value + rho * (1 - eigenvalues * value)
        return value

    return f
