"""Exact Gauss–Newton products on one fixed batch.

With z = output(w) the logits of the batch at the flat weights w and ℓ = loss(z) its mean loss,

    v ↦ Jᵀ (∇²_z ℓ) J v + λv,    J = ∂z/∂w          positive semidefinite plus λ when ℓ is convex in z

The matrix is never formed. λ is absolute here, not a share of the mean diagonal. Computation runs in the type and on
the device of `point`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap

from sgoif.core.precision import full_precision
from sgoif.errors import SettingError

CHUNK = 32
"""Vectors that are multiplied at a time."""


def pull_back(function: Callable[..., Any], at: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The value of a function at a point, and the product with its transposed Jacobian there."""
    evaluated: tuple[Any, ...] = vjp(function, at)

    def product(vector: Tensor) -> Tensor:
        result: Tensor = evaluated[1](vector)[0]
        return result

    return evaluated[0], product


class ExactGGN:
    """Generalised Gauss-Newton matrix of a batch, plus λ."""

    def __init__(
        self, output: Callable[[Tensor], Tensor], loss: Callable[[Tensor], Tensor], point: Tensor, damping: float
    ) -> None:
        if not damping >= 0:
            raise SettingError(f"damping is an absolute λ here and must not be negative; got {damping}")
        if point.ndim != 1:
            raise SettingError(f"point must be a flat vector of weights [P]; got shape {tuple(point.shape)}")
        self.output, self.loss, self.point, self.damping = output, loss, point.detach(), damping

    @property
    def device(self) -> torch.device:
        return self.point.device

    @full_precision
    def matvec(self, vectors: Tensor) -> Tensor:
        """(H + λI) applied to each of the vectors [K, P]."""
        vectors = vectors.to(self.point)
        if not len(vectors):
            return vectors
        products: Tensor = vmap(self.linearise(), chunk_size=CHUNK)(vectors)
        return products + self.damping * vectors

    def linearise(self) -> Callable[[Tensor], Tensor]:
        """The map v ↦ H v, without damping, for one vector [P]."""
        logits, transposed_jacobian = pull_back(self.output, self.point)
        # ∇²ℓ is symmetric, so reverse over reverse does: many losses have no forward-mode derivative of their gradient.
        _, loss_hessian = pull_back(grad(self.loss), logits)

        def product(vector: Tensor) -> Tensor:
            change: Tensor = jvp(self.output, (self.point,), (vector,))[1]
            return transposed_jacobian(loss_hessian(change))

        return product
