from __future__ import annotations

import pytest
import torch
from curvature_cases import (
    CASES,
    assert_is_matrix,
    corrected_average,
    damped,
    make_factors,
    make_layout,
    slow_gradients,
)

from sgoif.curvature import Diagonal, Factors
from sgoif.curvature import diagonal as diagonal_module


def dense(case: str, batches: int, decay: float, damping: float) -> torch.Tensor:
    squares = [slow_gradients(make_factors(case, 8, seed)).square().mean(0) for seed in range(batches)]
    return damped(torch.diag(corrected_average(squares, decay)), damping)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batches", [1, 4])
def test_is_the_dense_diagonal(case: str, batches: int) -> None:
    curvature = Diagonal(make_layout(case), damping=0.1, decay=0.7)
    for seed in range(batches):
        curvature.update(make_factors(case, 8, seed))
    expected = dense(case, batches, 0.7, 0.1)
    assert_is_matrix(curvature, expected, solve_rtol=2e-5)
    spectrum = curvature.spectrum()
    assert spectrum.smallest == pytest.approx(float(expected.diagonal().min()), rel=1e-5)
    assert spectrum.largest == pytest.approx(float(expected.diagonal().max()), rel=1e-5)


@pytest.mark.parametrize("chunk", [1, 13, 30, 10**9])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(diagonal_module, "CHUNK", chunk)
    curvature = Diagonal(make_layout("mixed"), damping=0.1, decay=0.7)
    curvature.update(make_factors("mixed", 8, 0))
    assert_is_matrix(curvature, dense("mixed", 1, 0.7, 0.1), solve_rtol=2e-5)


def test_memory_stays_bounded_with_many_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagonal_module, "CHUNK", 3 * 12)
    seen: list[int] = []
    gradient = Factors.gradient
    monkeypatch.setattr(Factors, "gradient", lambda self: seen.append(len(self.delta)) or gradient(self))
    curvature = Diagonal(make_layout("positions"))
    curvature.update(make_factors("positions", 8, 0))
    assert seen == [3, 3, 2]
    seen.clear()
    Diagonal(make_layout("linear")).update(make_factors("linear", 8, 0))
    assert seen == [], "one position needs no per-example gradient at all"
