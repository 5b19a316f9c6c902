from __future__ import annotations

import pytest
import torch
from dense_operators import Dense, K, P, SpectralDense, normal, spd
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.solvers import Control, Richardson, base, richardson
from sgoif.solvers.base import host_norms


def test_steps_are_the_formula() -> None:
    operator, rhs, phi = Dense(spd(30)), normal(K, P), normal(K, P, seed=2)
    solution = Richardson(steps=3).solve(operator, rhs, phi, Control(step=0.5))
    for _ in range(3):
        phi = phi + 0.5 / operator.eigenvalues[-1] * (rhs - phi @ operator.matrix)
    torch.testing.assert_close(solution.phi, phi)


@settings(max_examples=40, deadline=None)
@given(
    steps=st.integers(1, 60),
    condition=st.floats(1.5, 1e6),
    step=st.floats(0.1, 1.0),
    warm=st.booleans(),
    seed=st.integers(0, 100),
)
def test_closed_form_equals_iteration(steps: int, condition: float, step: float, warm: bool, seed: int) -> None:
    matrix, rhs = spd(condition, seed=seed), normal(K, P, seed=seed)
    start = normal(K, P, seed=seed + 1) if warm else None
    iterated = Richardson(steps).solve(Dense(matrix), rhs, start, Control(step=step))
    closed = Richardson(steps).solve(SpectralDense(matrix), rhs, start, Control(step=step))
    torch.testing.assert_close(closed.phi, iterated.phi, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(closed.residual, iterated.residual, atol=1e-9, rtol=1e-9)
    assert closed.history[-1] == pytest.approx(iterated.history[-1])
    assert closed.steps == iterated.steps


def test_closed_form_equals_the_textbook_formula() -> None:
    operator, rhs, start = SpectralDense(spd(30)), normal(K, P), normal(K, P, seed=2)
    solution = Richardson(steps=7).solve(operator, rhs, start)
    values, vectors = operator.eigenvalues, operator.eigenvectors
    left = (1 - values / values[-1]) ** 7
    expected = (left * (start @ vectors) + (1 - left) / values * (rhs @ vectors)) @ vectors.mT
    torch.testing.assert_close(solution.phi, expected)


@pytest.mark.parametrize(("warm", "expected"), [(False, 2 * K), (True, 3 * K)])
def test_closed_form_is_cheap(warm: bool, expected: int) -> None:
    operator, rhs = SpectralDense(spd(30)), normal(K, P)
    assert Richardson(steps=50).solve(operator, rhs, rhs if warm else None).products == expected


def test_closed_form_makes_the_host_wait_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def counted(*vectors: torch.Tensor) -> torch.Tensor:
        nonlocal looks
        looks += 1
        return host_norms(*vectors)

    for module in (base, richardson):
        monkeypatch.setattr(module, "host_norms", counted)
    Richardson(steps=50).solve(SpectralDense(spd(30)), normal(K, P), normal(K, P, seed=2))
    assert looks == 2, "once for g, the start and its residual, once for what came of them"


@pytest.mark.parametrize("kind", [Dense, SpectralDense])
@pytest.mark.parametrize("claimed", [0.01, 0.5])
def test_contracts_even_when_the_largest_eigenvalue_is_underestimated(kind: type[Dense], claimed: float) -> None:
    operator, rhs = kind(spd(30), claimed=claimed), normal(K, P)  # the truth is 3
    solution = Richardson(steps=40).solve(operator, rhs)
    assert all(after <= before for before, after in zip(solution.history, solution.history[1:], strict=False))
    assert solution.history[-1] < 0.8 * solution.history[0]
    torch.testing.assert_close(solution.residual, rhs - operator.matvec(solution.phi))


def test_hopeless_steps_leave_the_start() -> None:
    operator, rhs, start = SpectralDense(spd(30), claimed=1e-12), normal(K, P), normal(K, P, seed=2)
    assert torch.equal(Richardson().solve(operator, rhs, start).phi, start)
