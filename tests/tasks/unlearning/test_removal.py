"""Removals: steps against dense algebra, certificates against training again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from unlearning_cases import L2, fitted_head, head_data, others, slow_gradient, slow_hessian, slow_optimum

from sgoif.errors import SettingError
from sgoif.tasks.unlearning import linear_solver
from sgoif.tasks.unlearning.newton import fit_head, minimise
from sgoif.tasks.unlearning.removal import Certificate, RowRemoval, certify, remove_rows


@pytest.fixture(params=["factored", "conjugate"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "conjugate":
        monkeypatch.setitem(linear_solver.DENSE_LIMIT, "cpu", 0)


ROWS = torch.tensor([5, 1, 30])


def test_the_first_steps_are_those_of_dense_algebra(way: None) -> None:
    fitted = fitted_head()
    data, w, left = fitted.data, fitted.w, others(60, ROWS)
    leaving = RowRemoval(fitted, ROWS)
    gradient = slow_gradient(data, L2, left, w)
    torch.testing.assert_close(leaving.gradient, gradient, rtol=1e-8, atol=1e-12)
    assert leaving.value == pytest.approx(float(leaving.objective.value_and_gradient(w)[0]), rel=1e-12)
    influence = -torch.linalg.solve(slow_hessian(data, L2, torch.arange(60), w), gradient)
    newton = -torch.linalg.solve(slow_hessian(data, L2, left, w), gradient)
    torch.testing.assert_close(leaving.influence(), influence, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(leaving.newton(), newton, rtol=1e-5, atol=1e-8)
    assert float((influence - newton).norm()) > 1e-3 * float(newton.norm())


def test_steps_lead_to_the_head_that_is_trained_without_them(way: None) -> None:
    fitted = fitted_head(l2=1e-3)
    star = slow_optimum(fitted.data, 1e-3, others(60, ROWS))
    distances = [float((remove_rows(fitted, ROWS, steps=steps).w - star).norm()) for steps in (1, 2, 6)]
    before = float((fitted.w - star).norm())
    assert before > distances[0] > distances[1]
    assert distances[0] < 0.2 * before
    assert distances[2] < 1e-6


def test_a_removal_stops_where_it_is_good_enough() -> None:
    fitted = fitted_head()
    enough = remove_rows(fitted, ROWS, steps=1).certificate.bound
    assert remove_rows(fitted, ROWS, steps=6, bound=1.01 * enough).steps == 1
    exact = remove_rows(fitted, ROWS, steps=50)
    assert exact.steps < 10
    assert exact.moved == pytest.approx(float((exact.w - fitted.w).norm()))


def test_the_certificate_by_hand() -> None:
    certificate = Certificate(gradient_norm=0.02, rounding=0.005, l2=0.1, left=7)
    assert certificate.bound == pytest.approx(0.25)
    assert certificate.logits(4.0) == pytest.approx(1.0)
    assert Certificate.from_record(certificate.record()) == certificate


def test_a_certificate_holds_for_any_head_and_is_reached_by_some() -> None:
    """Where the loss is flat, the penalty is all the curvature there is, and the bound is the distance."""
    fitted = fitted_head(l2=0.5)
    far = fitted.w + 0.3 * torch.randn(fitted.w.shape, dtype=torch.float64)
    certificate = certify(fitted.objective, far)
    assert float((far - fitted.w).norm()) <= certificate.bound
    shift = torch.zeros(3, 5, dtype=torch.float64)
    shift[:, 0] = 1.0  # the same for all classes: softmax does not see it
    moved = fitted.w + shift.reshape(-1)
    assert certify(fitted.objective, moved).bound == pytest.approx(float(shift.norm()), rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(8, 40),
    width=st.integers(1, 5),
    classes=st.integers(2, 4),
    exponent=st.floats(-4, 0.5),
    scale=st.floats(0.01, 30),
    size=st.integers(1, 6),
    steps=st.integers(1, 3),
)
def test_the_certificate_never_lies(
    seed: int, count: int, width: int, classes: int, exponent: float, scale: float, size: int, steps: int
) -> None:
    l2 = 10.0**exponent
    data = head_data(count, width, classes, seed)
    data = type(data)(scale * data.features, data.labels, classes)
    fitted = fit_head(data, l2)
    rows = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:size]
    removed = remove_rows(fitted, rows, steps=steps)
    again = minimise(fitted.objective.leaving_out(rows), tolerance=1e-13)
    # Training again ends close to the optimum, not in it; by its own certificate.
    slack = certify(fitted.objective.leaving_out(rows), again.w).bound
    distance = float((removed.w - again.w).norm())
    assert distance <= removed.certificate.bound + slack
    x = data.inputs(slice(None))
    off = (x @ (removed.w - again.w).view(classes, -1).T).norm(dim=1)
    assert bool((off <= x.norm(dim=1) * (removed.certificate.bound + slack) + 1e-12).all())


def test_nothing_is_certified_about_heads_that_are_no_numbers() -> None:
    fitted = fitted_head()
    with pytest.raises(SettingError, match="nothing can be certified"):
        certify(fitted.objective, torch.full_like(fitted.w, float("nan")))


@pytest.mark.gpu
def test_a_gpu_gives_the_same() -> None:
    data = head_data(200, width=8)
    there = type(data)(data.features.cuda(), data.labels.cuda(), 3)
    here, other = fit_head(data, L2), fit_head(there, L2)
    torch.testing.assert_close(other.w.cpu(), here.w, rtol=1e-6, atol=1e-8)
    found = remove_rows(here, ROWS), remove_rows(other, ROWS.cuda())
    torch.testing.assert_close(found[1].w.cpu(), found[0].w, rtol=1e-6, atol=1e-8)
