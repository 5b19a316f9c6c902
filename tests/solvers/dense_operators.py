"""Dense symmetric positive definite operators that count what is asked of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sgoif.curvature.base import Spectrum

torch.set_num_threads(1)

K, P = 7, 40


class Dense:
    """H as a matrix; `calls` counts rows passed to `matvec`, `claimed` replaces the true λ_max."""

    def __init__(self, matrix: Tensor, claimed: float | None = None) -> None:
        self.matrix = matrix
        self.eigenvalues, self.eigenvectors = torch.linalg.eigh(matrix.double())
        self.claimed = claimed
        self.calls = 0

    def matvec(self, vectors: Tensor) -> Tensor:
        self.calls += len(vectors)
        return vectors @ self.matrix

    def diagonal(self) -> Tensor:
        return self.matrix.diagonal()

    def spectrum(self) -> Spectrum:
        return Spectrum(float(self.eigenvalues[0]), self.claimed or float(self.eigenvalues[-1]))

    def exact(self, rhs: Tensor) -> Tensor:
        return torch.linalg.solve(self.matrix.double(), rhs.double().mT).mT

    def error(self, phi: Tensor, rhs: Tensor) -> float:
        """Relative error of φ, worst row."""
        exact = self.exact(rhs)
        return float(((phi.double() - exact).norm(dim=-1) / exact.norm(dim=-1)).max())

    def energy_error(self, phi: Tensor, rhs: Tensor) -> Tensor:
        """Error in the norm of H, [K]."""
        gap = phi.double() - self.exact(rhs)
        return ((gap @ self.matrix.double()) * gap).sum(-1).clamp_min(0).sqrt()


class SpectralDense(Dense):
    """The same with functions of its eigenvalues; each application counts as one product per row."""

    def apply_function(self, vectors: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        self.calls += len(vectors)
        rotated = vectors.double() @ self.eigenvectors
        return ((rotated * function(self.eigenvalues)) @ self.eigenvectors.mT).to(vectors)


def spd(condition: float, size: int = P, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random eigenvectors, eigenvalues spread evenly in the logarithm over [1, condition] / 10."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
    values = 0.1 * torch.logspace(0, 1, size, base=condition, dtype=torch.float64)
    matrix = (q * values) @ q.mT
    return ((matrix + matrix.mT) / 2).to(dtype)


def badly_scaled(condition: float, spread: float, size: int = P, seed: int = 0) -> Tensor:
    """A well-conditioned matrix seen through a diagonal scaling over `spread`: what Jacobi undoes."""
    root = torch.logspace(0, 0.5, size, base=spread, dtype=torch.float64)
    return root[:, None] * spd(condition, size, seed) * root


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
