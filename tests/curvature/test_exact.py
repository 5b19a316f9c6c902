from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from curvlinops import GGNLinearOperator
from exact_cases import ExactHessian, dense
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call

from sgoif.curvature import ExactGGN
from sgoif.curvature import exact as exact_module
from sgoif.errors import SettingError


class Problem:
    """A small network and batch, as functions of flat weights."""

    def __init__(self, dtype: torch.dtype = torch.float64, conv: bool = False) -> None:
        torch.manual_seed(3)
        if conv:
            self.model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GELU(), nn.Flatten(), nn.Linear(8, 3)).to(dtype)
            self.inputs = torch.randn(6, 1, 4, 4, dtype=dtype)
        else:
            self.model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)
            self.inputs = torch.randn(9, 4, dtype=dtype)
        self.labels = torch.randint(3, (len(self.inputs),))
        self.shapes = {name: p.shape for name, p in self.model.named_parameters()}
        self.point = nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def output(self, flat: Tensor) -> Tensor:
        parts = torch.split(flat, [shape.numel() for shape in self.shapes.values()])
        weights = {name: part.reshape(s) for (name, s), part in zip(self.shapes.items(), parts, strict=True)}
        return functional_call(self.model, weights, (self.inputs,))

    def loss(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, self.labels)

    def dense_ggn(self) -> Tensor:
        logits = self.output(self.point)
        j = jacobian(self.output, self.point).flatten(0, 1)
        curvature = hessian(self.loss, logits).reshape(logits.numel(), logits.numel())
        return j.T @ curvature @ j

    def dense_hessian(self) -> Tensor:
        return hessian(lambda flat: self.loss(self.output(flat)), self.point)


def eye(problem: Problem) -> Tensor:
    return torch.eye(len(problem.point), dtype=problem.point.dtype)


KINDS: list[tuple[type, Callable[[Problem], Tensor], float]] = [
    (ExactGGN, Problem.dense_ggn, 0.05),
    (ExactHessian, Problem.dense_hessian, 3.0),
]
both = pytest.mark.parametrize(("kind", "oracle", "damping"), KINDS)


@both
@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_is_the_dense_matrix(
    monkeypatch: pytest.MonkeyPatch, kind: type, oracle: Callable, damping: float, conv: bool, chunk: int
) -> None:
    monkeypatch.setattr(exact_module, "CHUNK", chunk)
    problem = Problem(conv=conv)
    operator = kind(problem.output, problem.loss, problem.point, damping)
    expected = oracle(problem) + damping * eye(problem)
    vectors = torch.randn(7, len(expected), dtype=torch.float64)
    torch.testing.assert_close(operator.matvec(vectors), vectors @ expected)
    assert operator.matvec(vectors[:0]).shape == (0, len(expected))


def test_ggn_agrees_with_curvlinops() -> None:
    problem = Problem()
    peer = GGNLinearOperator(
        problem.model, nn.CrossEntropyLoss(), list(problem.model.parameters()), [(problem.inputs, problem.labels)]
    )
    operator = ExactGGN(problem.output, problem.loss, problem.point, 0.0)
    torch.testing.assert_close(dense(operator), peer @ eye(problem))


def test_ggn_and_hessian_differ_away_from_a_minimum() -> None:
    problem = Problem()
    assert (problem.dense_ggn() - problem.dense_hessian()).abs().max() > 1e-3


@both
def test_works_inside_no_grad_and_autocast_in_the_type_of_the_point(
    kind: type, oracle: Callable, damping: float
) -> None:
    problem = Problem(dtype=torch.float32)
    expected = oracle(problem) + damping * eye(problem)
    vectors = torch.randn(3, len(expected), dtype=torch.float64)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = kind(problem.output, problem.loss, problem.point, damping).matvec(vectors)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    torch.testing.assert_close(found, vectors.float() @ expected, rtol=1e-4, atol=1e-5)


@both
def test_settings_are_checked(kind: type, oracle: Callable, damping: float) -> None:
    problem = Problem()
    with pytest.raises(SettingError, match="damping"):
        kind(problem.output, problem.loss, problem.point, -1.0)
    with pytest.raises(SettingError, match="flat"):
        kind(problem.output, problem.loss, problem.point[None], damping)
