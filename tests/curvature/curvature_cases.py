"""Factors to feed, and the same curvature built the slow way: one example, position and weight at a time, float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sgoif.core.parameter_layout import Block, Layout
from sgoif.curvature import Factors

# name -> one (rows, cols, positions, elementwise) per block
CASES: dict[str, list[tuple[int, int, int, bool]]] = {
    "linear": [(3, 4, 1, False)],
    "positions": [(3, 4, 5, False)],
    "elementwise": [(4, 2, 6, True)],
    "elementwise_one_position": [(4, 2, 1, True)],
    "mixed": [(3, 4, 1, False), (2, 5, 7, False), (4, 2, 3, True), (1, 3, 1, False)],
}


def make_layout(case: str) -> Layout:
    return Layout(tuple(Block(f"layer{i}", rows, cols) for i, (rows, cols, _, _) in enumerate(CASES[case])))


def make_factors(
    case: str, batch: int, seed: int, scale: float = 1.0, dtype: torch.dtype = torch.float32
) -> list[Factors]:
    generator = torch.Generator().manual_seed(seed)
    factors = []
    for rows, cols, positions, elementwise in CASES[case]:
        shape = (batch, positions, rows, cols) if elementwise else (batch, positions, cols)
        # Columns of unequal size, so that a transposed or misplaced block cannot pass for the right one.
        inputs = torch.randn(shape, generator=generator) * torch.linspace(0.5, 2.0, cols)
        delta = torch.randn(batch, positions, rows, generator=generator) * torch.linspace(1.5, 0.5, rows) * scale
        factors.append(Factors(inputs.to(dtype), delta.to(dtype), elementwise))
    return factors


def slow_gradients(factors: Sequence[Factors]) -> Tensor:
    """Per-example gradients [B, P] by loops."""
    examples = []
    for i in range(len(factors[0].delta)):
        parts = []
        for factor in factors:
            total = torch.zeros(factor.delta.shape[-1], factor.inputs.shape[-1], dtype=torch.float64)
            for delta, inputs in zip(factor.delta[i].double(), factor.inputs[i].double(), strict=True):
                total += delta[:, None] * inputs if factor.elementwise else torch.outer(delta, inputs)
            parts.append(total.flatten())
        examples.append(torch.cat(parts))
    return torch.stack(examples)


def corrected_average(batches: Sequence[Tensor], decay: float) -> Tensor:
    """Exponentially weighted mean, the weights summed and divided out explicitly."""
    weights = [(1 - decay) * decay ** (len(batches) - 1 - t) for t in range(len(batches))]
    return sum(w * b for w, b in zip(weights, batches, strict=True)) / sum(weights)


def damped(matrix: Tensor, damping: float) -> Tensor:
    return matrix + damping * matrix.diagonal().mean() * torch.eye(len(matrix), dtype=matrix.dtype)


def random_vectors(count: int, size: int, seed: int = 99) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed))


def assert_is_matrix(curvature, dense: Tensor, rtol: float = 2e-5, solve_rtol: float = 1e-3) -> None:
    """`matvec`, `solve` and `diagonal` all belong to the dense matrix."""
    vectors = random_vectors(6, len(dense))
    close(curvature.matvec(vectors), vectors.double() @ dense, rtol)
    close(curvature.solve(vectors), torch.linalg.solve(dense, vectors.double().T).T, solve_rtol)
    close(curvature.diagonal(), dense.diagonal(), rtol)


def close(found: Tensor, expected: Tensor, rtol: float) -> None:
    """Equal up to `rtol` of the largest entry; float32 against float64."""
    assert found.shape == expected.shape
    assert found.dtype == torch.float32
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error <= rtol, f"relative error {error:.2e} > {rtol:.0e}"
