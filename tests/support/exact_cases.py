"""The exact Hessian, and exact operators as dense matrices: oracles for what the library approximates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad

from sgoif.curvature.exact import ExactGGN, pull_back


class ExactHessian(ExactGGN):
    """Hessian of a batch's mean loss, plus λ."""

    def linearise(self) -> Callable[[Tensor], Tensor]:
        def objective(weights: Tensor) -> Tensor:
            return self.loss(self.output(weights))

        return pull_back(grad(objective), self.point)[1]


def dense(operator: ExactGGN) -> Tensor:
    """H + λI as a matrix [P, P]."""
    matrix = operator.matvec(torch.eye(len(operator.point)).to(operator.point))
    return (matrix + matrix.T) / 2


def solved(operator: ExactGGN, vectors: Tensor) -> Tensor:
    """(H + λI)⁻¹ applied to vectors [K, P]; raises where the matrix is not positive definite."""
    factor = torch.linalg.cholesky(dense(operator).double())
    return torch.cholesky_solve(vectors.double().T, factor).T.to(operator.point)
