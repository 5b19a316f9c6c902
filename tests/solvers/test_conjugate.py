from __future__ import annotations

import pytest
import torch
from dense_operators import Dense, K, P, normal, spd

from sgoif.solvers import ConjugateGradient, Control
from sgoif.solvers.base import Workspace
from sgoif.solvers.conjugate import _nystrom


def test_agrees_with_a_textbook_recursion_row_by_row() -> None:
    operator, rhs = Dense(spd(100)), normal(K, P)
    solution = ConjugateGradient(iterations=6, tolerance=0, sketch=0).solve(operator, rhs)
    for row in range(K):
        x = torch.zeros(P, dtype=torch.float64)
        r = p = rhs[row]
        for _ in range(6):
            hp = operator.matrix @ p
            alpha = (r @ r) / (p @ hp)
            x, before = x + alpha * p, r @ r
            r = r - alpha * hp
            p = r + (r @ r) / before * p
        torch.testing.assert_close(solution.phi[row], x, atol=1e-8, rtol=1e-8)


def test_is_optimal_in_the_krylov_space() -> None:
    operator, rhs = Dense(spd(1000)), normal(1, P)
    phi = ConjugateGradient(iterations=4, tolerance=0, sketch=0).solve(operator, rhs).phi
    krylov = torch.cat([rhs @ torch.linalg.matrix_power(operator.matrix, k) for k in range(4)])
    q = torch.linalg.qr(krylov.mT).Q.mT
    best = torch.linalg.solve(q @ operator.matrix @ q.mT, q @ rhs[0]) @ q
    torch.testing.assert_close(phi[0], best, atol=1e-7, rtol=1e-6)


def test_converged_rows_freeze_and_cost_nothing() -> None:
    operator = Dense(spd(100))
    rhs = normal(3, P)
    rhs[0] = operator.eigenvectors[:, 0]  # done after one step
    solution = ConjugateGradient(iterations=20, tolerance=1e-12, sketch=0).solve(operator, rhs)
    assert solution.steps == 20
    assert solution.products == operator.calls == 1 + 2 * 20 + 3
    torch.testing.assert_close(solution.phi[0], rhs[0] / operator.eigenvalues[0])


def test_nothing_to_do_costs_nothing() -> None:
    operator = Dense(spd(100))
    solution = ConjugateGradient().solve(operator, torch.zeros(K, P, dtype=torch.float64))
    assert solution.products == operator.calls == solution.steps == 0
    rhs = normal(K, P)
    exact = operator.exact(rhs)
    done = ConjugateGradient().solve(operator, rhs, exact)
    assert done.products == K
    assert done.history == [pytest.approx(0, abs=1e-9)]
    exact[1:] = 0
    assert torch.equal(ConjugateGradient(sketch=0).solve(operator, rhs, exact).phi[0], exact[0]), "done already"


def test_the_tolerance_is_a_share_of_the_right_hand_side() -> None:
    operator, rhs = Dense(spd(100)), normal(K, P)
    solver = ConjugateGradient(iterations=100, tolerance=1e-3, sketch=0)
    steps = [solver.solve(operator, unit * rhs).steps for unit in (1.0, 1e3, 1e-3)]
    assert len(set(steps)) == 1
    assert 1 < steps[0] < 100


def test_the_preconditioner_flattens_what_was_sketched() -> None:
    work = Workspace(Dense(spd(1000)), normal(K, P), None)
    values, vectors = _nystrom(work, 6, seed=0)
    rows = normal(3, P, seed=4)
    within = rows @ vectors.mT
    expected = values[-1] * (within / values) @ vectors + rows - within @ vectors
    torch.testing.assert_close(ConjugateGradient(sketch=6)._preconditioner(work, 6)(rows), expected)
    assert torch.equal(ConjugateGradient(sketch=0)._preconditioner(work, 0)(rows), rows)


def test_nystrom_is_exact_on_what_it_can_hold() -> None:
    matrix = spd(1000)
    values, vectors = _nystrom(Workspace(Dense(matrix), normal(K, P), None), P, seed=0)
    torch.testing.assert_close((vectors.mT * values) @ vectors, matrix, atol=1e-9, rtol=0)
    low = normal(P, 5)
    values, vectors = _nystrom(Workspace(Dense(low @ low.mT), normal(K, P), None), 9, seed=0)
    torch.testing.assert_close((vectors.mT * values) @ vectors, low @ low.mT, atol=1e-6, rtol=0)
    torch.testing.assert_close(vectors @ vectors.mT, torch.eye(9, dtype=torch.float64), atol=1e-6, rtol=0)
    least = torch.finfo(torch.float64).eps * float(values[0])
    assert 0.99 * least <= float(values[-1]) < 100 * least, "what H does not hold is rounding, and still positive"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sketch_pays_for_itself_on_a_decaying_spectrum(dtype: torch.dtype) -> None:
    low = normal(P, 10) * torch.logspace(2, 0, 10, dtype=torch.float64)
    operator = Dense((low @ low.mT + torch.eye(P, dtype=torch.float64)).to(dtype))
    rhs = normal(K, P, dtype=dtype)
    sketched = ConjugateGradient(iterations=4, tolerance=0, sketch=14).solve(operator, rhs)
    plain = ConjugateGradient(iterations=6, tolerance=0, sketch=0).solve(operator, rhs)
    assert sketched.products <= plain.products
    assert operator.energy_error(sketched.phi, rhs).max() < 0.05 * operator.energy_error(plain.phi, rhs).min()


def test_sketch_rank_is_steered_and_capped() -> None:
    operator, rhs = Dense(spd(100)), normal(K, P)
    solver = ConjugateGradient(iterations=1, tolerance=0, sketch=8)
    for factor, rank in ((1, 8), (0.5, 4), (100, P)):
        assert solver.solve(operator, rhs, control=Control(rank=factor)).products == rank + K + K
    off = ConjugateGradient(iterations=1, tolerance=0, sketch=0)
    assert off.solve(operator, rhs, control=Control(rank=5)).products == K + K


def test_an_indefinite_operator_is_survived() -> None:
    matrix = torch.diag(torch.linspace(-1, 1, P, dtype=torch.float64))
    operator = Dense(matrix)
    solution = ConjugateGradient(iterations=30, sketch=0).solve(operator, normal(K, P))
    assert solution.phi.isfinite().all()
    torch.testing.assert_close(solution.residual, normal(K, P) - solution.phi @ matrix)
    # Along negative curvature there is no minimum to step to.
    assert (ConjugateGradient(sketch=0).solve(Dense(-spd(3)), normal(K, P)).phi == 0).all()


def test_the_preconditioner_knows_no_units() -> None:
    matrix, rhs = spd(1000), normal(K, P)
    solver = ConjugateGradient(iterations=4, tolerance=0, sketch=8)
    small, large = solver.solve(Dense(matrix), rhs).phi, solver.solve(Dense(1e4 * matrix), rhs).phi
    torch.testing.assert_close(1e4 * large, small, atol=1e-8, rtol=1e-8)


def test_residual_is_honest_at_the_limit_of_precision() -> None:
    matrix = spd(1e6, dtype=torch.float32)
    rhs = normal(K, P, dtype=torch.float32)
    solution = ConjugateGradient(iterations=200, tolerance=1e-30, sketch=0).solve(Dense(matrix), rhs)
    true = rhs.double() - solution.phi.double() @ matrix.double()
    assert (solution.norms.residual > 0.2 * true.norm(dim=-1)).all()
    assert solution.history[-1] == pytest.approx(float(solution.norms.residual.mean()))
