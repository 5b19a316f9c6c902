"""The convex head: values, gradients and curvature against autograd and dense matrices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from unlearning_cases import L2, blobs, extended, head_data, others, slow_gradient, slow_hessian, slow_loss

from sgoif.errors import SettingError
from sgoif.tasks.unlearning import head as head_module
from sgoif.tasks.unlearning.head import HeadData, Objective

CASES: list[dict[str, Any]] = [{}, {"bias": False}, {"constant": 0.125}, {"constant": 3.0, "bias": False}]


@pytest.fixture(params=["whole", "chunks"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same in one piece, and in chunks of a few rows of which nothing is kept."""
    if request.param == "chunks":
        monkeypatch.setattr(head_module, "CHUNK", 35)
        monkeypatch.setattr(head_module, "KEEP_DOUBLE", 0)
    return str(request.param)


@pytest.mark.parametrize("options", CASES)
def test_value_gradient_and_curvature(options: dict[str, Any], sizes: str) -> None:
    data = head_data(40, **options)
    w = torch.randn(data.parameters, dtype=torch.float64)
    rows = torch.tensor([3, 17, 4, 29])
    left = others(40, rows)
    objective = Objective(data, L2).leaving_out(rows)
    value, gradient = objective.value_and_gradient(w)
    assert objective.size == 36
    assert value == pytest.approx(float(slow_loss(data, L2, left, w)), rel=1e-12)
    torch.testing.assert_close(gradient, slow_gradient(data, L2, left, w), rtol=1e-10, atol=1e-13)

    dense = slow_hessian(data, L2, left, w)
    curvature = objective.curvature(w)
    vectors = torch.randn(5, data.parameters, dtype=torch.float64)
    for _ in range(2):  # the second time with what was kept of the first
        torch.testing.assert_close(curvature.matvec(vectors), vectors @ dense, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(curvature.dense(), dense, rtol=1e-10, atol=1e-13)


def test_leaving_out_twice_is_leaving_out_both() -> None:
    data = head_data(30)
    w = torch.randn(data.parameters, dtype=torch.float64)
    step = Objective(data, L2).leaving_out(torch.tensor([1])).leaving_out(torch.tensor([5, 2]))
    torch.testing.assert_close(step.gradient(w), slow_gradient(data, L2, others(30, torch.tensor([1, 5, 2])), w))


def test_slopes_are_inner_products_with_gradients_of_single_losses(sizes: str) -> None:
    data = head_data(20)
    w, psi = torch.randn(2, data.parameters, dtype=torch.float64)
    expected = [float(psi @ slow_gradient(data, 0.0, torch.tensor([i]), w)) for i in range(20)]
    torch.testing.assert_close(Objective(data, L2).slopes(w, psi), torch.tensor(expected, dtype=torch.float64))


def test_inputs_norms_and_logits(sizes: str) -> None:
    data = head_data(15, constant=0.5)
    w = torch.randn(data.parameters, dtype=torch.float64)
    x = extended(data)
    torch.testing.assert_close(data.inputs(slice(None)), x)
    torch.testing.assert_close(data.norms(), x.norm(dim=1))
    assert data.longest == pytest.approx(float(x.norm(dim=1).max()))
    torch.testing.assert_close(data.logits(w), x @ w.view(3, -1).T)
    torch.testing.assert_close(data.take(torch.tensor([4, 2])).inputs(slice(None)), x[[4, 2]])


def test_half_precision_features_are_computed_in_double() -> None:
    features, labels = blobs(20)
    data = HeadData(features.half(), labels, 3)
    assert data.inputs(slice(None)).dtype == torch.float64
    assert data.features.dtype == torch.float16


def test_something_has_to_stay() -> None:
    with pytest.raises(SettingError, match="all 5 examples"):
        Objective(head_data(5), L2).leaving_out(torch.arange(5))
