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
from sgoif.curvature import KFAC, Factors
from sgoif.errors import LayerError


def slow_factors(factor: Factors) -> tuple[torch.Tensor, torch.Tensor]:
    """S and A of one batch by loops."""
    batch, positions, rows = factor.delta.shape
    s = torch.zeros(rows, rows, dtype=torch.float64)
    a = torch.zeros(factor.inputs.shape[-1], factor.inputs.shape[-1], dtype=torch.float64)
    for i in range(batch):
        for t in range(positions):
            delta, inputs = factor.delta[i, t].double(), factor.inputs[i, t].double()
            s += torch.outer(delta, delta) / batch
            a += torch.outer(inputs, inputs) / (batch * positions)
    return s, a


def dense(case: str, batches: int, decay: float, damping: float) -> torch.Tensor:
    blocks = []
    runs = [make_factors(case, 8, seed) for seed in range(batches)]
    for index, (rows, cols, _, elementwise) in enumerate(CASES[case]):
        if elementwise:
            squares = [slow_gradients([factors[index]]).square().mean(0) for factors in runs]
            block = torch.diag(corrected_average(squares, decay))
        else:
            pairs = [slow_factors(factors[index]) for factors in runs]
            s, a = (corrected_average([pair[k] for pair in pairs], decay) for k in (0, 1))
            block = torch.kron(s, a)
        assert len(block) == rows * cols
        blocks.append(block + damping * block.diagonal().mean() * torch.eye(rows * cols, dtype=torch.float64))
    return torch.block_diag(*blocks)


def updated(case: str, batches: int = 3, decay: float = 0.7, damping: float = 0.1) -> KFAC:
    curvature = KFAC(make_layout(case), damping=damping, decay=decay)
    for seed in range(batches):
        curvature.update(make_factors(case, 8, seed))
    return curvature


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batches", [1, 3])
def test_is_the_dense_kronecker_product(case: str, batches: int) -> None:
    curvature = updated(case, batches)
    expected = dense(case, batches, 0.7, 0.1)
    assert_is_matrix(curvature, expected)
    eigenvalues = torch.linalg.eigvalsh(expected)
    assert curvature.spectrum().smallest == pytest.approx(float(eigenvalues[0]), rel=1e-4)
    assert curvature.spectrum().largest == pytest.approx(float(eigenvalues[-1]), rel=1e-5)
    assert curvature.spectrum().condition == pytest.approx(float(eigenvalues[-1] / eigenvalues[0]), rel=1e-4)


def test_one_position_and_one_example_is_the_exact_gradient_outer_product() -> None:
    factors = make_factors("linear", 1, 0)
    curvature = KFAC(make_layout("linear"), damping=0.1)
    curvature.update(factors)
    gradient = slow_gradients(factors)[0]
    ridge = 0.1 * gradient.square().mean() * torch.eye(len(gradient), dtype=torch.float64)
    assert_is_matrix(curvature, torch.outer(gradient, gradient) + ridge)


@pytest.mark.parametrize("steps", [1, 5, 50])
def test_apply_function_is_richardson_in_closed_form(steps: int) -> None:
    curvature = updated("mixed")
    step = 1 / curvature.spectrum().largest
    rhs = random_vectors(4, curvature.layout.size)
    phi = torch.zeros_like(rhs)
    for _ in range(steps):
        phi = phi + step * (rhs - curvature.matvec(phi))
    found = curvature.apply_function(rhs, lambda x: (1 - (1 - step * x) ** steps) / x)
    close(found, phi.double(), 1e-5)


def test_apply_function_gets_all_damped_eigenvalues_at_once() -> None:
    curvature = updated("mixed")
    seen: list[torch.Tensor] = []
    vectors = random_vectors(2, curvature.layout.size)
    out = curvature.apply_function(vectors, lambda values: seen.append(values) or torch.ones_like(values))
    close(out, vectors.double(), 1e-5)
    assert len(seen) == 1, "one call: on a GPU every further one would cost as much"
    assert seen[0].dtype == torch.float64
    expected = torch.linalg.eigvalsh(dense("mixed", 3, 0.7, 0.1))
    torch.testing.assert_close(seen[0].sort().values, expected, rtol=1e-5, atol=0)


def test_zero_gradients_leave_a_finite_positive_operator() -> None:
    curvature = KFAC(make_layout("mixed"))
    curvature.update(make_factors("mixed", 8, 0, scale=0.0))
    vectors = random_vectors(3, curvature.layout.size)
    assert curvature.spectrum().smallest > 0
    assert curvature.solve(vectors).isfinite().all()
    assert (curvature.matvec(vectors) * vectors).sum(-1).gt(0).all()


def test_a_dead_layer_does_not_ruin_the_condition_number() -> None:
    factors = make_factors("mixed", 8, 0)
    factors[1] = Factors(factors[1].inputs, torch.zeros_like(factors[1].delta))
    curvature = KFAC(make_layout("mixed"), damping=0.1)
    curvature.update(factors)
    assert curvature.spectrum().condition < 1e12
    assert curvature.solve(random_vectors(3, curvature.layout.size)).isfinite().all()


def test_a_layer_may_not_change_its_kind() -> None:
    layout = Layout((Block("norm", 2, 3),))
    curvature = KFAC(layout)
    curvature.update([Factors(torch.ones(4, 1, 3), torch.ones(4, 1, 2))])
    with pytest.raises(LayerError, match="norm"):
        curvature.update([Factors(torch.ones(4, 1, 2, 3), torch.ones(4, 1, 2), elementwise=True)])
