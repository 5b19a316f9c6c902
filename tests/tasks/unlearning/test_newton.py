"""The optimum of a head, against L-BFGS and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from unlearning_cases import L2, blobs, extended, head_data, others, slow_gradient, slow_optimum

from sgoif.errors import NonFiniteError
from sgoif.tasks.unlearning import linear_solver
from sgoif.tasks.unlearning import newton as newton_module
from sgoif.tasks.unlearning.head import HeadData, Objective
from sgoif.tasks.unlearning.linear_solver import Factor, LeaveOutOperator, WhitenedOperator, solve
from sgoif.tasks.unlearning.newton import FittedHead, fit_head, minimise, reference_norm


@pytest.fixture(params=["factored", "conjugate"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Heads that are small enough for a factor, and heads that are not."""
    if request.param == "conjugate":
        monkeypatch.setitem(linear_solver.DENSE_LIMIT, "cpu", 0)
    return str(request.param)


@pytest.mark.parametrize("l2", [1e-4, 0.01, 1.0])
def test_the_optimum_is_that_of_another_optimizer(l2: float, way: str) -> None:
    data = head_data(80)
    fitted = fit_head(data, l2)
    assert float(fitted.gradient.norm()) <= 1e-10 * reference_norm(fitted.objective)
    torch.testing.assert_close(fitted.w, slow_optimum(data, l2, torch.arange(80)), rtol=1e-5, atol=1e-7)


def test_the_optimum_is_that_of_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    data = head_data(90, classes=4)
    peer = linear_model.LogisticRegression(C=1 / (90 * L2), fit_intercept=False, tol=1e-10, max_iter=5000)
    peer.fit(extended(data).numpy(), data.labels.numpy())
    np.testing.assert_allclose(fit_head(data, L2).w.view(4, -1).numpy(), peer.coef_, atol=2e-6)


def test_it_does_not_matter_where_it_starts(way: str) -> None:
    data = head_data(50)
    start = 10 * torch.randn(data.parameters, dtype=torch.float64)
    torch.testing.assert_close(fit_head(data, L2, start).w, fit_head(data, L2).w, rtol=1e-7, atol=1e-9)


def test_leaving_rows_out(way: str) -> None:
    data, rows = head_data(60), torch.tensor([0, 7, 9])
    fitted = fit_head(data, L2)
    found = minimise(fitted.objective.leaving_out(rows), fitted.w, factor=fitted.factor)
    assert found.converged
    torch.testing.assert_close(found.w, slow_optimum(data, L2, others(60, rows)), rtol=1e-5, atol=1e-7)


def test_separable_classes_of_a_large_scale_still_converge(way: str) -> None:
    features, labels = blobs(60, spread=0.01)
    fitted = fit_head(HeadData(100 * features, labels, 3), 1e-4)
    assert float(fitted.gradient.norm()) <= 1e-9 * reference_norm(fitted.objective)


def test_a_worn_factor_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Counted(Factor):
        def __init__(self, curvature: object) -> None:
            made.append(1)
            super().__init__(curvature)  # type: ignore[arg-type]

    monkeypatch.setattr(newton_module, "Factor", Counted)
    monkeypatch.setattr(newton_module, "MOST_PRODUCTS", 2)
    data = head_data(60)
    torch.testing.assert_close(fit_head(data, 1e-3).w, slow_optimum(data, 1e-3, torch.arange(60)), rtol=1e-5, atol=1e-7)
    assert len(made) > 1


def test_solve_in_the_coordinates_of_a_factor() -> None:
    data, rows = head_data(40), torch.tensor([2, 3, 11])
    w = torch.randn(data.parameters, dtype=torch.float64)
    objective = Objective(data, L2)
    factor = Factor(objective.curvature(w))
    left = objective.leaving_out(rows)
    dense = left.curvature(w).dense()
    rhs = torch.randn(3, data.parameters, dtype=torch.float64)
    expected = torch.linalg.solve(dense, rhs.T).T
    torch.testing.assert_close(solve(left.curvature(w), rhs, factor).vectors, expected, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(solve(left.curvature(w), rhs, None).vectors, expected, rtol=1e-7, atol=1e-9)

    some = Objective(data.take(rows), L2).curvature(w)
    own, other = LeaveOutOperator(factor, some, 40, 3), WhitenedOperator(left.curvature(w), factor)
    torch.testing.assert_close(own.matvec(rhs), other.matvec(rhs), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(factor.solve(rhs), torch.linalg.solve(objective.curvature(w).dense(), rhs.T).T)


def test_few_steps_stop_early_and_say_so() -> None:
    found = minimise(Objective(head_data(60), 1e-4), steps=1)
    assert (found.steps, found.converged) == (1, False)


def test_what_is_known_of_a_fitted_head(way: str) -> None:
    fitted = FittedHead(Objective(head_data(30), L2), torch.randn(15, dtype=torch.float64))
    torch.testing.assert_close(fitted.gradient, slow_gradient(fitted.data, L2, torch.arange(30), fitted.w))
    rhs = torch.randn(2, 15, dtype=torch.float64)
    expected = torch.linalg.solve(fitted.objective.curvature(fitted.w).dense(), rhs.T).T
    torch.testing.assert_close(fitted.solve(rhs), expected, rtol=1e-7, atol=1e-9)
    assert (fitted.factor is None) == (way == "conjugate")


def test_features_that_are_no_numbers() -> None:
    features, labels = blobs(20)
    features[3, 1] = float("nan")
    with pytest.raises((NonFiniteError, RuntimeError)):
        fit_head(HeadData(features, labels, 3), L2)
