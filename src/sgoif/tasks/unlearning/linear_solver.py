"""H⁻¹ b for the curvature of a head: by a Cholesky factor where that is small, by conjugate gradients elsewhere.

With H = R Rᵀ at one point, any nearby curvature G (another point, a few examples less) is solved in the coordinates
u = Rᵀ v, where its matrix R⁻¹ G R⁻ᵀ is close to the identity, so that a few steps of conjugate gradients are enough.
Leaving out k of n examples S at the very point of the factor needs no look at the others at all:

    R⁻¹ H_{−S} R⁻ᵀ = (n I − R⁻¹ (Σ_{i∈S} h_i + kλ I) R⁻ᵀ) / (n − k)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.solvers import ConjugateGradient
from sgoif.solvers.base import Products
from sgoif.tasks.unlearning.head import HeadCurvature, HeadData

DENSE_LIMIT = {"cpu": 2048, "cuda": 8192}
"""Most weights of a head whose curvature is factored."""
ITERATIONS, SKETCH = 1000, 64
EXACT = 1e-10
"""Relative residual at which a system counts as solved."""


def can_factor(data: HeadData) -> bool:
    """Whether heads of this size are factored."""
    return data.parameters <= DENSE_LIMIT.get(data.device.type, 0)


class Factor:
    """R with H = R Rᵀ."""

    def __init__(self, curvature: HeadCurvature) -> None:
        self.root: Tensor = torch.linalg.cholesky(curvature.dense())

    def whiten(self, rows: Tensor) -> Tensor:
        """R⁻¹ v for rows v."""
        found: Tensor = torch.linalg.solve_triangular(self.root, rows.T, upper=False)
        return found.T

    def colour(self, rows: Tensor) -> Tensor:
        """R⁻ᵀ u for rows u."""
        found: Tensor = torch.linalg.solve_triangular(self.root.T, rows.T, upper=True)
        return found.T

    def solve(self, rows: Tensor) -> Tensor:
        """H⁻¹ v for rows v."""
        return self.colour(self.whiten(rows))


@dataclass(frozen=True)
class WhitenedOperator:
    """R⁻¹ G R⁻ᵀ."""

    operator: Products
    factor: Factor

    def matvec(self, vectors: Tensor) -> Tensor:
        return self.factor.whiten(self.operator.matvec(self.factor.colour(vectors)))


@dataclass(frozen=True)
class LeaveOutOperator:
    """R⁻¹ H_{−S} R⁻ᵀ at the point of the factor; `some` is the mean curvature of S, λ included."""

    factor: Factor
    some: Products
    total: int
    count: int

    def matvec(self, vectors: Tensor) -> Tensor:
        own = self.factor.whiten(self.some.matvec(self.factor.colour(vectors)))
        return (self.total * vectors - self.count * own) / (self.total - self.count)


@dataclass(frozen=True)
class LinearSolution:
    """v with G v ≈ b, and the products with G that it took."""

    vectors: Tensor
    products: int


def solve(operator: Products, rhs: Tensor, factor: Factor | None, tolerance: float = EXACT) -> LinearSolution:
    """G⁻¹ b for rows b [K, P], with the factor of a curvature close to G where there is one."""
    if factor is None:
        found = ConjugateGradient(ITERATIONS, tolerance, min(SKETCH, rhs.shape[1] // 8)).solve(operator, rhs)
        return LinearSolution(found.phi, found.products)
    return solve_whitened(WhitenedOperator(operator, factor), rhs, factor, tolerance)


def solve_whitened(
    operator: WhitenedOperator | LeaveOutOperator, rhs: Tensor, factor: Factor, tolerance: float = EXACT
) -> LinearSolution:
    """The same where the operator is one in the coordinates of the factor already."""
    found = ConjugateGradient(ITERATIONS, tolerance, 0).solve(operator, factor.whiten(rhs))
    return LinearSolution(factor.colour(found.phi), found.products)
