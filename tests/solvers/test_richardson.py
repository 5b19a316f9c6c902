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
    found = Richardson().solve(operator, rhs, start)
    assert torch.equal(found.phi, start)
    assert found.steps == 5
    assert found.history == [pytest.approx(float((rhs - operator.matvec(start)).norm(dim=1).mean()))] * 2


@pytest.mark.parametrize(("claimed", "steps"), [(2.0, 3), (2.0, 40), (0.5, 40)])
def test_closed_form_holds_beyond_the_largest_eigenvalue_and_halves_the_step_that_is_too_long(
    claimed: float, steps: int
) -> None:
    """The truth is 3: of 2, ρλ is 1.5 and converges; of 0.5 it is 6, and two halvings make it 1.5."""
    operator, rhs = SpectralDense(spd(30), claimed=claimed), normal(K, P)
    found = Richardson(steps=steps).solve(operator, rhs)
    values, vectors = operator.eigenvalues, operator.eigenvectors
    expected = ((1 - (1 - values / 2) ** steps) / values * (rhs @ vectors)) @ vectors.mT
    torch.testing.assert_close(found.phi, expected)


@pytest.mark.parametrize("kind", [Dense, SpectralDense])
def test_robbins_and_monro_steps_go_on_from_call_to_call(kind: type[Dense]) -> None:
    operator, rhs, phi = kind(spd(30)), normal(K, P), torch.zeros(K, P, dtype=torch.float64)
    solver = Richardson(steps=2, decay=0.6)
    found = solver.solve(operator, rhs, phi)
    again = Richardson(steps=2, decay=0.6)
    again.load_state_dict(solver.state_dict())
    for t in range(1, 5):
        if t == 3:
            found = again.solve(operator, rhs, found.phi)
        phi = phi + t**-0.6 / operator.eigenvalues[-1] * (rhs - phi @ operator.matrix)
    torch.testing.assert_close(found.phi, phi)


def test_a_row_within_its_budget_is_left_alone_and_the_others_go_on_until_they_are() -> None:
    operator, rhs = Dense(spd(30)), normal(K, P) * torch.linspace(0.1, 3, K, dtype=torch.float64).unsqueeze(1)
    plain = Richardson(steps=400).solve(operator, rhs)
    first, budget = rhs.norm(dim=1), 1.0
    found = Richardson(steps=400).solve(operator, rhs, control=Control(budget=budget))
    left = found.residual.norm(dim=1)
    assert bool((left <= budget).all())
    assert torch.equal(found.phi[first <= budget], torch.zeros_like(rhs)[first <= budget])
    assert bool((left[first > budget] > 0.8 * budget).all()), "no row is solved further than it has to be"
    assert 0 < found.steps < plain.steps
    assert len(found.history) == found.steps + 1
    assert found.history[0] == pytest.approx(float(first.mean()))
    assert found.history[-1] == pytest.approx(float(left.mean()))
    assert found.products < found.steps * K
    torch.testing.assert_close(found.residual, rhs - operator.matvec(found.phi))


def test_a_row_that_a_step_does_not_shrink_takes_the_step_back() -> None:
    operator, start = Dense(spd(30), claimed=1e-12), normal(K, P, seed=2)
    found = Richardson(steps=5).solve(operator, normal(K, P), start, Control(budget=1e-3))
    assert torch.equal(found.phi, start)
    assert found.products == 2 * K, "one look, and no further step"
