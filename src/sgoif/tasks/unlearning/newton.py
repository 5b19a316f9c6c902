"""The optimum of a convex head, by damped Newton steps.

    w ← w − t (∇²L(w))⁻¹ ∇L(w),      t = 1, ½, ¼, … until L falls enough

Far from the optimum the systems are solved roughly, near it exactly, so the gradient falls quadratically at the end. A
factor of the curvature (`linear_solver`) serves for as many steps as it makes the systems easy, then a new one is made.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sgoif.errors import NonFiniteError
from sgoif.tasks.unlearning.head import HeadData, Objective
from sgoif.tasks.unlearning.linear_solver import EXACT, Factor, can_factor, solve

TOLERANCE = 1e-10
"""Gradient norm of a fitted head, relative to that of a head of zeros."""
STEPS = 200
HALVINGS = 40
ARMIJO = 1e-4
ROUGH = 0.1
MOST_PRODUCTS = 60
"""Products after which a new factor costs less than going on with the old one."""
ROUNDING = 1e-12
"""Relative differences of L below this are rounding."""


@dataclass
class Optimum:
    """Where Newton's method ended."""

    w: Tensor
    value: float
    """L(w)."""
    gradient: Tensor
    """∇L(w)."""
    steps: int
    converged: bool

    @property
    def gradient_norm(self) -> float:
        return float(torch.linalg.vector_norm(self.gradient))


def reference_norm(objective: Objective) -> float:
    """‖∇L(0)‖, what tolerances are relative to."""
    return float(torch.linalg.vector_norm(objective.gradient(zeros(objective.data))))


def zeros(data: HeadData) -> Tensor:
    """A head of zeros."""
    return torch.zeros(data.parameters, dtype=torch.float64, device=data.device)


def minimise(
    objective: Objective,
    start: Tensor | None = None,
    *,
    factor: Factor | None = None,
    tolerance: float = TOLERANCE,
    steps: int = STEPS,
) -> Optimum:
    """The minimum of L from `start`, or from zeros; `factor` is one of a curvature nearby."""
    small = can_factor(objective.data)
    w = zeros(objective.data) if start is None else start.clone()
    scale = reference_norm(objective)
    value, gradient = objective.value_and_gradient(w)
    first = max(tolerance * scale, float(torch.linalg.vector_norm(gradient)))
    for step in range(steps):
        norm = float(torch.linalg.vector_norm(gradient))
        if norm <= tolerance * scale:
            return Optimum(w, value, gradient, step, True)
        curvature = objective.curvature(w)
        if small and factor is None:
            factor = Factor(curvature)
        answer = solve(curvature, -gradient[None], factor, max(EXACT, min(ROUGH, norm / first)))
        if small and answer.products > MOST_PRODUCTS:
            factor = None
        moved = line_search(objective, w, answer.vectors[0], value, gradient)
        if moved is None:  # rounding is all that is left
            return Optimum(w, value, gradient, step, False)
        w, value, gradient = moved
    return Optimum(w, value, gradient, steps, float(torch.linalg.vector_norm(gradient)) <= tolerance * scale)


def line_search(
    objective: Objective, w: Tensor, direction: Tensor, value: float, gradient: Tensor
) -> tuple[Tensor, float, Tensor] | None:
    """The first of w + d, w + d/2, … that is good enough, with L and ∇L there; None where none is."""
    slope = float(gradient @ direction)
    norm = float(torch.linalg.vector_norm(gradient))
    if not slope < 0:
        if slope != slope:
            raise NonFiniteError("the features of the head are infinite or NaN, expected finite numbers")
        return None
    length = 1.0
    for _ in range(HALVINGS):
        there = w + length * direction
        new, slope_there = objective.value_and_gradient(there)
        falls = new <= value + ARMIJO * length * slope
        # Where L itself no longer shows a difference, its gradient still does.
        flatter = new <= value + ROUNDING * abs(value) and float(torch.linalg.vector_norm(slope_there)) < norm
        if falls or flatter:
            return there, new, slope_there
        length /= 2
    return None


@dataclass
class FittedHead:
    """A head at its optimum, or close to it, with the factor of the curvature there."""

    objective: Objective
    w: Tensor
    _known: tuple[float, Tensor] | None = field(default=None, repr=False)
    _factor: Factor | None = field(default=None, repr=False)

    @property
    def data(self) -> HeadData:
        return self.objective.data

    @property
    def value_and_gradient(self) -> tuple[float, Tensor]:
        """L(w) and ∇L(w), which is nearly zero."""
        if self._known is None:
            self._known = self.objective.value_and_gradient(self.w)
        return self._known

    @property
    def gradient(self) -> Tensor:
        """∇L(w)."""
        return self.value_and_gradient[1]

    @property
    def factor(self) -> Factor | None:
        """Of ∇²L(w); None for heads that are too large."""
        if self._factor is None and can_factor(self.data):
            self._factor = Factor(self.objective.curvature(self.w))
        return self._factor

    def solve(self, rows: Tensor) -> Tensor:
        """(∇²L(w))⁻¹ b for rows b."""
        if (factor := self.factor) is not None:
            return factor.solve(rows)
        return solve(self.objective.curvature(self.w), rows, None).vectors


def fit_head(data: HeadData, l2: float, start: Tensor | None = None) -> FittedHead:
    """The optimal head."""
    objective = Objective(data, l2)
    found = minimise(objective, start)
    return FittedHead(objective, found.w, (found.value, found.gradient))
