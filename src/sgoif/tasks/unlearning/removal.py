"""Removing examples S from a head without training it again, and how far the result is from training again.

At the optimum w of L, with F = L without S and n, k the numbers of all examples and of S,

    influence   w̃ = w − (∇²L(w))⁻¹ ∇F(w)             the first order in S
    Newton      w̃ = w − (∇²F(w))⁻¹ ∇F(w)             also knows that S no longer holds the weights in place
    ∇F(w) = (n ∇L(w) − Σ_{i∈S} (∇ℓ_i + λ w)) / (n − k)

Further steps start from w̃. F is λ-strongly convex, so whatever w̃ is, the head w* that training without S ends with
obeys

    ‖w̃ − w*‖ ≤ ‖∇F(w̃)‖ / λ,         and for every input  ‖z̃ − z*‖ ≤ ‖ã‖ · ‖∇F(w̃)‖ / λ

for its logits z. This is the certificate: a theorem about the head given frozen features, not an estimate. ∇F(w̃) is
computed in float64; a bound on its rounding error is added before it is divided by λ.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.unlearning.head import Objective
from sgoif.tasks.unlearning.linear_solver import LeaveOutOperator, solve, solve_whitened
from sgoif.tasks.unlearning.newton import FittedHead, line_search

UNIT_ROUNDOFF = 2.0**-53
STEPS = 6
"""Most Newton steps of a removal."""
LATER = 1e-6
"""Relative residual of systems whose solution needs passes over the data."""


@dataclass(frozen=True)
class Certificate:
    """How far a head can be from the one that training without the deleted examples ends with."""

    gradient_norm: float
    """‖∇F(w̃)‖."""
    rounding: float
    """Bound on the error of that norm."""
    l2: float
    """λ, the strong convexity."""
    left: int
    """Examples that the head still rests on."""

    @property
    def bound(self) -> float:
        """‖w̃ − w*‖ is at most this."""
        return (self.gradient_norm + self.rounding) / self.l2

    def logits(self, norm: float) -> float:
        """No logit of an input with ‖ã‖ = `norm` is off by more than this."""
        return norm * self.bound

    def record(self) -> dict[str, Any]:
        """In terms of JSON."""
        return {**asdict(self), "bound": self.bound}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        return cls(**{name: value for name, value in record.items() if name != "bound"})


@dataclass(frozen=True)
class RemovedHead:
    """A head without some examples."""

    w: Tensor
    certificate: Certificate
    steps: int
    moved: float
    """‖w̃ − w‖."""


def certify(objective: Objective, w: Tensor, gradient: Tensor | None = None) -> Certificate:
    """The certificate of any head for this objective."""
    found = objective.gradient(w) if gradient is None else gradient
    norm = float(torch.linalg.vector_norm(found))
    if not math.isfinite(norm):
        raise SettingError("the head or the features are infinite or NaN, so nothing can be certified")
    return Certificate(norm, _rounding(objective, w), objective.l2, objective.size)


def _rounding(objective: Objective, w: Tensor) -> float:
    """Bound on the rounding error of ‖∇F(w)‖: of the logits, hence of p, then of the sums; first order, doubled."""
    data = objective.data
    longest, size = data.longest, float(torch.linalg.vector_norm(w))
    terms = data.width + math.log2(len(data) + 1) + 8
    summed = (len(data) + (0 if objective.without is None else len(objective.without))) / objective.size
    return 2 * UNIT_ROUNDOFF * terms * (longest * (2 + longest * size) * summed + objective.l2 * size)


class RowRemoval:
    """Leaving some rows out of a fitted head: what is known about F at w without a look at the examples that stay."""

    def __init__(self, fitted: FittedHead, rows: Tensor) -> None:
        self.fitted = fitted
        self.objective = fitted.objective.leaving_out(rows)
        self._some = Objective(fitted.data.take(rows), fitted.objective.l2)
        self._total, self._count = fitted.objective.size, len(rows)
        (value, gradient), (own, slope) = fitted.value_and_gradient, self._some.value_and_gradient(fitted.w)
        self.value = (self._total * value - self._count * own) / self.objective.size
        """F(w)"""
        self.gradient = (self._total * gradient - self._count * slope) / self.objective.size
        """∇F(w)"""

    def influence(self) -> Tensor:
        """The step of the first order."""
        return -self.fitted.solve(self.gradient[None])[0]

    def newton(self) -> Tensor:
        """Newton's step."""
        fitted, factor = self.fitted, self.fitted.factor
        if factor is None:
            return -solve(self.objective.curvature(fitted.w), self.gradient[None], None, LATER).vectors[0]
        operator = LeaveOutOperator(factor, self._some.curvature(fitted.w), self._total, self._count)
        return -solve_whitened(operator, self.gradient[None], factor).vectors[0]


def remove_rows(fitted: FittedHead, rows: Tensor, *, steps: int = STEPS, bound: float = 0.0) -> RemovedHead:
    """The head without these rows after at most so many Newton steps; stops where the certificate falls to `bound`."""
    leaving = RowRemoval(fitted, rows)
    objective, w, taken = leaving.objective, fitted.w, 0
    value, gradient, direction = leaving.value, leaving.gradient, leaving.newton()
    certificate = certify(objective, w, gradient)
    while (moved := line_search(objective, w, direction, value, gradient)) is not None:
        w, value, gradient = moved
        taken += 1
        certificate = certify(objective, w, gradient)
        if taken == steps or certificate.bound <= bound or certificate.gradient_norm <= certificate.rounding:
            break
        direction = solve(objective.curvature(w), -gradient[None], fitted.factor, LATER).vectors[0]
    return RemovedHead(w, certificate, taken, float(torch.linalg.vector_norm(w - fitted.w)))
