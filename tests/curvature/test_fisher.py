from __future__ import annotations

import pytest
import torch
from curvature_cases import (
    CASES,
    assert_is_matrix,
    close,
    damped,
    make_factors,
    make_layout,
    random_vectors,
    slow_gradients,
)

from sgoif.curvature import EmpiricalFisher
from sgoif.curvature import fisher as fisher_module
from sgoif.curvature.fisher import pick
from sgoif.errors import SettingError


def dense(gradients: torch.Tensor, damping: float) -> torch.Tensor:
    return damped(gradients.T @ gradients / len(gradients), damping)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batches", [1, 2, 5])
def test_is_the_dense_fisher_of_the_last_gradients(case: str, batches: int) -> None:
    curvature = EmpiricalFisher(make_layout(case), damping=0.1, window=20)
    for seed in range(batches):
        curvature.update(make_factors(case, 8, seed))
    gradients = torch.cat([slow_gradients(make_factors(case, 8, seed)) for seed in range(batches)])[-20:]
    expected = dense(gradients, 0.1)
    assert_is_matrix(curvature, expected)
    eigenvalues = torch.linalg.eigvalsh(expected)
    assert curvature.spectrum().smallest == pytest.approx(float(eigenvalues[0]), rel=1e-4)
    assert curvature.spectrum().largest == pytest.approx(float(eigenvalues[-1]), rel=1e-5)


def test_small_damping_is_still_inverted_to_float32_accuracy() -> None:
    curvature = EmpiricalFisher(make_layout("mixed"), damping=1e-5, window=16)
    curvature.update(make_factors("mixed", 16, 0))
    expected = dense(slow_gradients(make_factors("mixed", 16, 0)), 1e-5)
    vectors = random_vectors(5, len(expected))
    close(curvature.solve(vectors), torch.linalg.solve(expected, vectors.double().T).T, 1e-5)


@pytest.mark.parametrize("chunk", [1, 50, 100])
def test_column_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(fisher_module, "CHUNK", chunk)
    curvature = EmpiricalFisher(make_layout("mixed"), damping=0.1, window=16)
    curvature.update(make_factors("mixed", 16, 0))
    assert_is_matrix(curvature, dense(slow_gradients(make_factors("mixed", 16, 0)), 0.1))


def test_a_batch_larger_than_the_window_is_thinned_evenly() -> None:
    curvature = EmpiricalFisher(make_layout("mixed"), damping=0.1, window=4)
    gradients = slow_gradients(make_factors("mixed", 8, 0))
    curvature.update(make_factors("mixed", 8, 0))
    assert_is_matrix(curvature, dense(gradients[[0, 2, 4, 6]], 0.1))
    curvature.update(make_factors("mixed", 8, 0))
    assert_is_matrix(curvature, dense(gradients[[1, 3, 5, 7]], 0.1))


@pytest.mark.parametrize(("batch", "count"), [(7, 3), (8, 5), (9, 9), (5, 1)])
def test_every_position_of_a_batch_is_picked_equally_often(batch: int, count: int) -> None:
    factors = make_factors("linear", batch, 0)
    tally = torch.zeros(batch)
    for turn in range(batch):
        chosen = pick(factors, count, turn)[0].delta[:, 0]
        tally += (chosen[:, None] == factors[0].delta[:, 0]).all(-1).sum(0)
    assert tally.tolist() == [count] * batch


def test_the_factorisation_follows_an_update() -> None:
    curvature = EmpiricalFisher(make_layout("linear"), damping=0.1, window=8)
    for seed in range(2):
        curvature.update(make_factors("linear", 8, seed))
        assert_is_matrix(curvature, dense(slow_gradients(make_factors("linear", 8, seed)), 0.1))


def test_window_must_hold_something() -> None:
    with pytest.raises(SettingError, match="window"):
        EmpiricalFisher(make_layout("linear"), window=0)
