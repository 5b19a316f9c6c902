from __future__ import annotations

import pytest
import torch
from curvature_cases import (
    CASES,
    assert_is_matrix,
    close,
    corrected_average,
    make_factors,
    make_layout,
    random_vectors,
    slow_gradients,
)

from sgoif.core.parameter_layout import Block, Layout
from sgoif.curvature import Factors, LowRankDiagonal
from sgoif.errors import SettingError


def low_rank_part(curvature: LowRankDiagonal) -> torch.Tensor:
    basis = curvature.basis.double()
    return basis @ torch.diag(curvature.eigenvalues.double()) @ basis.T


def surrogate(curvature: LowRankDiagonal, diagonal: torch.Tensor, damping: float) -> torch.Tensor:
    """D + QΛQᵀ + λI from the exposed basis and a diagonal computed the slow way."""
    low_rank = low_rank_part(curvature)
    matrix = low_rank + torch.diag((diagonal - low_rank.diagonal()).clamp_min(0))
    return matrix + damping * matrix.diagonal().mean() * torch.eye(len(matrix), dtype=torch.float64)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batches", [1, 7])
def test_is_the_dense_surrogate(case: str, batches: int) -> None:
    curvature = LowRankDiagonal(make_layout(case), damping=0.1, decay=0.7, rank=3, refresh=2, buffer=6)
    for seed in range(batches):
        curvature.update(make_factors(case, 8, seed))
    squares = [slow_gradients(make_factors(case, 8, seed)).square().mean(0) for seed in range(batches)]
    expected = surrogate(curvature, corrected_average(squares, 0.7), 0.1)
    assert curvature.eigenvalues[0] > 0
    assert_is_matrix(curvature, expected)
    eigenvalues = torch.linalg.eigvalsh(expected)
    spectrum = curvature.spectrum()
    assert 0 < spectrum.smallest <= float(eigenvalues[0]) * (1 + 1e-5)
    assert float(eigenvalues[-1]) * (1 - 1e-5) <= spectrum.largest <= 2 * float(eigenvalues[-1])


@pytest.mark.parametrize("case", ["linear", "mixed"])
def test_with_full_rank_and_the_whole_batch_it_is_the_running_fisher(case: str) -> None:
    size = make_layout(case).size
    curvature = LowRankDiagonal(make_layout(case), damping=0.1, decay=0.7, rank=size, refresh=1, buffer=8)
    products = []
    for seed in range(12):
        # Batches smaller than the buffer: what was merged before must not be merged again.
        factors = make_factors(case, 8 if seed % 2 == 0 else 3, seed)
        curvature.update(factors)
        gradients = slow_gradients(factors)
        products.append(gradients.T @ gradients / len(gradients))
        close(low_rank_part(curvature).float(), corrected_average(products, 0.7), 1e-5)
    matrix = corrected_average(products, 0.7)
    ridge = 0.1 * matrix.diagonal().mean() * torch.eye(size, dtype=torch.float64)
    assert_is_matrix(curvature, matrix + ridge, rtol=1e-4)


def test_a_merge_keeps_the_leading_directions_of_old_and_new() -> None:
    curvature = LowRankDiagonal(make_layout("mixed"), decay=0.7, rank=4, refresh=3, buffer=6)
    curvature.update(make_factors("mixed", 2, 0))
    old, updates = low_rank_part(curvature), [make_factors("mixed", 2, seed) for seed in (1, 2, 3)]
    for factors in updates:
        close(low_rank_part(curvature).float(), old, 1e-6)
        curvature.update(factors)
    gradients = torch.cat([slow_gradients(factors) for factors in updates])
    kept, fresh = 0.7**3 * 0.3, 1 - 0.7**3
    mixed = (kept * old + fresh * gradients.T @ gradients / len(gradients)) / (kept + fresh)
    values, vectors = torch.linalg.eigh(mixed)
    expected = vectors[:, -4:] @ torch.diag(values[-4:]) @ vectors[:, -4:].T
    close(low_rank_part(curvature).float(), expected, 1e-5)


def test_basis_is_orthonormal_and_sorted() -> None:
    curvature = LowRankDiagonal(make_layout("mixed"), rank=5, refresh=2, buffer=8)
    for seed in range(9):
        curvature.update(make_factors("mixed", 8, seed))
    assert curvature.basis.shape == (curvature.layout.size, 5)
    torch.testing.assert_close(curvature.basis.T @ curvature.basis, torch.eye(5), rtol=0, atol=1e-5)
    assert curvature.eigenvalues.tolist() == sorted(curvature.eigenvalues.tolist(), reverse=True)


def test_diagonal_of_h_is_kept() -> None:
    curvature = LowRankDiagonal(make_layout("mixed"), damping=1e-6, decay=0.7, rank=2, refresh=1, buffer=8)
    for seed in range(5):
        curvature.update(make_factors("mixed", 8, seed))
    squares = [slow_gradients(make_factors("mixed", 8, seed)).square().mean(0) for seed in range(5)]
    close(curvature.diagonal(), corrected_average(squares, 0.7), 1e-5)


def test_finds_planted_directions_in_a_stream() -> None:
    layout = Layout((Block("wide", 1, 40),))
    planted = torch.linalg.qr(torch.randn(40, 3)).Q
    curvature = LowRankDiagonal(layout, decay=0.9, rank=3, refresh=5, buffer=40)
    for _ in range(60):
        inputs = (torch.randn(16, 3) * torch.tensor([6.0, 5.0, 4.0])) @ planted.T + 0.3 * torch.randn(16, 40)
        curvature.update([Factors(inputs[:, None], torch.ones(16, 1, 1))])
    cosines = torch.linalg.svdvals(curvature.basis.T @ planted)
    assert cosines.min() > 0.99
    assert curvature.eigenvalues.tolist() == pytest.approx([36, 25, 16], rel=0.35)


def test_set_rank_shrinks_to_the_leading_directions_and_grows_at_the_next_refresh() -> None:
    curvature = LowRankDiagonal(make_layout("mixed"), damping=0.1, decay=0.7, rank=4, refresh=2, buffer=12)
    for seed in range(3):
        curvature.update(make_factors("mixed", 8, seed))
    squares = [slow_gradients(make_factors("mixed", 8, seed)).square().mean(0) for seed in range(3)]
    diagonal = corrected_average(squares, 0.7)
    curvature.solve(random_vectors(1, curvature.layout.size))
    basis, eigenvalues = curvature.basis.clone(), curvature.eigenvalues.clone()

    curvature.set_rank(2)
    assert torch.equal(curvature.basis, basis[:, :2])
    assert torch.equal(curvature.eigenvalues, eigenvalues[:2])
    assert_is_matrix(curvature, surrogate(curvature, diagonal, 0.1))

    curvature.set_rank(7)
    assert curvature.basis.shape == (curvature.layout.size, 7)
    assert curvature.eigenvalues[2:].eq(0).all()
    assert_is_matrix(curvature, surrogate(curvature, diagonal, 0.1))
    for seed in range(3, 5):
        curvature.update(make_factors("mixed", 8, seed))
    assert curvature.eigenvalues.gt(0).all()
    assert_is_matrix(
        curvature,
        surrogate(
            curvature,
            corrected_average(
                squares + [slow_gradients(make_factors("mixed", 8, seed)).square().mean(0) for seed in range(3, 5)], 0.7
            ),
            0.1,
        ),
    )


@pytest.mark.parametrize("setting", ["rank", "refresh", "buffer"])
def test_settings_must_be_positive(setting: str) -> None:
    with pytest.raises(SettingError, match=setting):
        LowRankDiagonal(make_layout("linear"), **{setting: 0})
    with pytest.raises(SettingError, match="rank"):
        LowRankDiagonal(make_layout("linear")).set_rank(0)
