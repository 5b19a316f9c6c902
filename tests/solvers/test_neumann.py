from __future__ import annotations

import pytest
import torch
from dense_operators import Dense, K, P, badly_scaled, normal, spd
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.solvers import Control, Neumann
from sgoif.solvers.base import power_iteration


@pytest.mark.parametrize("warm", [False, True])
def test_is_the_series_of_the_paper(warm: bool) -> None:
    operator, rhs = Dense(spd(10)), normal(K, P)
    start = normal(K, P, seed=2) if warm else None
    solution = Neumann(max_terms=4, tolerance=0, preconditioner=False).solve(operator, rhs, start)
    alpha = operator.eigenvalues[-1]
    delta = operator.matrix - alpha * torch.eye(P, dtype=torch.float64)
    residual = rhs if start is None else rhs - start @ operator.matrix
    expected = sum(residual / alpha @ torch.linalg.matrix_power(-delta / alpha, k) for k in range(4))
    torch.testing.assert_close(solution.phi, expected if start is None else start + expected)
    assert solution.steps == 4


@settings(max_examples=40, deadline=None)
@given(
    condition=st.floats(1.1, 1e3),
    alpha_share=st.floats(0.55, 3.0),
    terms=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_truncation_error_obeys_its_bound(condition: float, alpha_share: float, terms: int, seed: int) -> None:
    exact = Dense(spd(condition, 10, seed))
    alpha = alpha_share * float(exact.eigenvalues[-1])
    operator, rhs = Dense(exact.matrix, claimed=alpha), normal(2, 10, seed=seed)
    solver = Neumann(max_terms=terms, tolerance=0, preconditioner=False)
    solution = solver.solve(operator, rhs)
    contraction = float((1 - exact.eigenvalues / alpha).abs().max())
    error = (solution.phi - exact.exact(rhs)).norm(dim=-1)
    if contraction >= 1:
        return
    bound = contraction**solution.steps / (1 - contraction) * rhs.norm(dim=-1) / alpha
    assert (error <= bound * (1 + 1e-9) + 1e-11 * condition).all()


def test_jacobi_undoes_bad_scaling() -> None:
    operator, rhs = Dense(badly_scaled(4, 1e4)), normal(K, P)
    preconditioned = Neumann(max_terms=200, tolerance=1e-6)
    plain = Neumann(max_terms=200, tolerance=1e-6, preconditioner=False)
    solution = preconditioned.solve(operator, rhs)
    assert solution.norms.residual.div(rhs.norm(dim=-1)).max() <= 1e-6
    assert solution.steps < 120
    assert operator.error(solution.phi, rhs) < 1e-4
    assert plain.solve(operator, rhs).norms.residual.div(rhs.norm(dim=-1)).max() > 1e-3


@settings(max_examples=40, deadline=None)
@given(condition=st.floats(1.1, 1e4), spread=st.floats(1, 1e5), size=st.integers(2, 30), seed=st.integers(0, 1000))
def test_scaling_lies_between_divergence_and_the_trivial_bound(
    condition: float, spread: float, size: int, seed: int
) -> None:
    operator = Dense(badly_scaled(condition, spread, size, seed))
    root = operator.diagonal().rsqrt()
    top = float(torch.linalg.eigvalsh(root[:, None] * operator.matrix * root)[-1])
    solver, rhs = Neumann(max_terms=1, tolerance=0), normal(2, size, seed=seed)
    phi = solver.solve(operator, rhs).phi  # the first term is M⁻¹g
    scale = float((rhs / phi / operator.diagonal()).mean())
    assert top / 2 < scale <= 1.1 * top * (1 + 1e-9)
    assert 1 <= top <= size * (1 + 1e-9)


def test_deeper_while_residuals_shrink_and_no_deeper_than_needed() -> None:
    operator, rhs = Dense(spd(10)), normal(K, P)
    depths = []
    for tolerance in (1e-1, 1e-3, 1e-5):
        solver = Neumann(max_terms=1000, tolerance=tolerance)
        solution = solver.solve(operator, rhs)
        relative = solution.norms.residual / rhs.norm(dim=-1)
        assert relative.max() <= tolerance
        # One term less would not have been enough.
        short = Neumann(max_terms=solution.steps - 1, tolerance=tolerance).solve(operator, rhs)
        assert (short.norms.residual / rhs.norm(dim=-1)).max() > tolerance
        depths.append(solution.steps)
    assert depths == sorted(set(depths))
    assert Neumann(max_terms=1000).solve(operator, rhs, operator.exact(rhs)).steps == 0


def test_stops_when_the_residual_grows() -> None:
    operator, rhs, start = Dense(spd(10), claimed=0.3), normal(K, P), 0.1 * normal(K, P, seed=2)  # the truth is 1
    solver = Neumann(max_terms=50, tolerance=0, preconditioner=False)
    solution = solver.solve(operator, rhs, start)
    assert solution.steps < 5
    assert solution.history[-1] <= solution.history[0]
    torch.testing.assert_close(solution.residual, rhs - operator.matvec(solution.phi))


def test_a_jump_of_the_terms_ends_the_series_before_the_term_is_added() -> None:
    # Two coupled directions of very different scale: the first term is large in the stiff one, the second in the soft
    # one, so the terms grow although the residual falls in its own norm.
    matrix = torch.tensor([[1.0, 0.0099], [0.0099, 1e-4]], dtype=torch.float64)
    operator, rhs = Dense(matrix), torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    patient, jumpy = Neumann(max_terms=200, tolerance=0, jump=1e6), Neumann(max_terms=200, tolerance=0, jump=1.5)
    assert jumpy.solve(operator, rhs).steps < 5
    assert patient.solve(operator, rhs).steps == 200


def test_steering() -> None:
    operator, rhs = Dense(spd(10)), normal(K, P)
    solver = Neumann(max_terms=1, tolerance=0)
    full = solver.solve(operator, rhs).phi
    torch.testing.assert_close(solver.solve(operator, rhs, control=Control(step=0.5)).phi, full / 2)


def test_power_iteration_estimates_from_below() -> None:
    operator = Dense(spd(30))
    estimates = [power_iteration(operator.matvec, normal(1, P), n) for n in (1, 4, 16, 64)]
    assert estimates == sorted(estimates)
    assert estimates[-1] <= float(operator.eigenvalues[-1]) * (1 + 1e-9)
    assert estimates[-1] > 0.99 * float(operator.eigenvalues[-1])


def test_a_first_term_that_makes_the_residual_grow_is_taken_back() -> None:
    operator, rhs, start = Dense(spd(10), claimed=1e-3), normal(K, P), normal(K, P, seed=2)
    found = Neumann(max_terms=5, tolerance=0, preconditioner=False).solve(operator, rhs, start)
    assert found.steps == 0
    assert torch.equal(found.phi, start)
    assert found.history == [pytest.approx(float((rhs - operator.matvec(start)).norm(dim=1).mean()))]


def test_of_a_diagonal_the_first_term_is_short_by_the_margin_alone() -> None:
    diagonal = torch.linspace(0.1, 5, P, dtype=torch.float64)
    rhs = normal(K, P)
    found = Neumann(max_terms=1, tolerance=0).solve(Dense(torch.diag(diagonal)), rhs)
    torch.testing.assert_close(found.phi, rhs / diagonal / 1.1)
    nothing = torch.diag(torch.cat([diagonal[1:], torch.zeros(1, dtype=torch.float64)]))
    assert bool(Neumann(max_terms=3).solve(Dense(nothing), rhs).phi.isfinite().all()), "a flat direction has no scale"


def test_the_tolerance_is_a_share_of_the_right_hand_side() -> None:
    operator, rhs = Dense(spd(10)), normal(K, P)
    solver = Neumann(max_terms=200, tolerance=1e-2)
    steps = [solver.solve(operator, unit * rhs).steps for unit in (1.0, 1e3, 1e-3)]
    assert len(set(steps)) == 1
    assert 1 < steps[0] < 200
