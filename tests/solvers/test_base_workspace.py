"""The parts that solvers are made of, each by its own definition."""

from __future__ import annotations

import pytest
import torch
from dense_operators import Dense, K, P, normal, spd

from sgoif.errors import NonFiniteError, StateError
from sgoif.solvers.base import (
    Control,
    Stateless,
    Workspace,
    check_state,
    host_norms,
    largest_eigenvalue,
    orthonormal_rows,
    power_iteration,
    random_rows,
    require_finite,
    row_dot,
    scaled,
    select_rows,
)

NAN, INF = torch.nan, torch.inf


def dirty() -> tuple[Dense, torch.Tensor, torch.Tensor]:
    """Seven rows: the second right-hand side is not finite, nor the third start, nor either of the fourth."""
    operator, rhs, start = Dense(spd(30)), normal(K, P), normal(K, P, seed=2)
    rhs[1, 0], rhs[3, 2] = NAN, INF
    start[2, 1], start[3, 0] = INF, NAN
    return operator, rhs, start


def test_what_is_not_finite_is_left_out_of_a_call() -> None:
    operator, rhs, start = dirty()
    work = Workspace(operator, rhs, start)
    assert work.alive.tolist() == [True, False, True, False, True, True, True]
    assert work.rhs[[1, 3]].eq(0).all(), "solved as zero"
    assert work.phi[[1, 2, 3]].eq(0).all()
    torch.testing.assert_close(work.residual[[0, 4]], rhs[[0, 4]] - start[[0, 4]] @ operator.matrix)
    assert torch.equal(work.residual[2], rhs[2]), "a start that is none begins at zero"
    living = work.residual[[0, 2, 4, 5, 6]].norm(dim=1)
    assert work.first_norm == pytest.approx(float(living.mean()))
    assert work.products == operator.calls == K


def test_what_comes_back_of_rows_that_cannot_be_solved() -> None:
    operator, rhs, start = dirty()
    work = Workspace(operator, rhs, start)
    phi, residual = work.phi + 1, work.residual * 0.5
    phi[4, 0], residual[5, 3] = INF, NAN  # two rows overflow on the way
    found = work.solution(phi, residual, 3, [2.0, 1.0])
    for row in (0, 2, 6):
        assert torch.equal(found.phi[row], work.phi[row] + 1)
        assert torch.equal(found.residual[row], work.residual[row] * 0.5)
    for row in (4, 5):
        assert torch.equal(found.phi[row], start[row]), "back to its start"
        assert torch.equal(found.residual[row], work.residual[row])
    assert torch.equal(found.phi[1], start[1])
    assert found.phi[3].eq(0).all(), "neither the right-hand side nor the start was any good"
    assert found.residual[[1, 3]].isnan().all()
    torch.testing.assert_close(found.norms.phi, found.phi.norm(dim=1))
    torch.testing.assert_close(found.norms.residual, found.residual.norm(dim=1), equal_nan=True)
    torch.testing.assert_close(found.norms.rhs[[0, 2]], rhs[[0, 2]].norm(dim=1))
    assert (found.steps, found.history, found.products) == (3, [2.0, 1.0], K)


def test_norms_that_a_solver_knows_are_not_taken_again() -> None:
    work = Workspace(Dense(spd(30)), normal(K, P), None)
    known = torch.full((2, K), 7.0, dtype=torch.float64)
    found = work.solution(work.phi, work.residual, 0, [], known)
    assert found.norms.phi.tolist() == found.norms.residual.tolist() == [7.0] * K


def test_without_a_start_no_product_is_spent_and_nothing_is_shared() -> None:
    operator, rhs = Dense(spd(30)), normal(K, P)
    work = Workspace(operator, rhs, None)
    assert work.products == 0
    assert torch.equal(work.residual, rhs)
    work.residual.zero_()
    assert rhs.norm() > 0


def test_where_no_row_is_alive_means_are_zero() -> None:
    work = Workspace(Dense(spd(30)), torch.full((2, P), NAN, dtype=torch.float64), None)
    assert work.first_norm == work.mean_norm(torch.ones(2, P)) == 0.0


def test_a_start_is_taken_in_the_precision_of_the_right_hand_side() -> None:
    operator = Dense(spd(30, dtype=torch.float32))
    work = Workspace(operator, normal(K, P, dtype=torch.float32), normal(K, P, seed=2))
    assert work.phi.dtype == work.residual.dtype == torch.float32


def test_nothing_remembers_how_it_was_computed() -> None:
    matrix = spd(30).requires_grad_(True)
    operator = Dense(matrix.detach())
    operator.matrix = matrix
    rhs, start = normal(K, P).requires_grad_(True), normal(K, P, seed=2).requires_grad_(True)
    work = Workspace(operator, rhs, start)
    for part in (work.rhs, work.phi, work.residual, work.apply(start)):
        assert not part.requires_grad


def test_rows_by_a_mask() -> None:
    chosen, other = torch.ones(2, 3), torch.zeros(2, 3)
    assert select_rows(torch.tensor([True, True]), chosen, other) is chosen, "no copy"
    assert select_rows(torch.tensor([True, False]), chosen, other).tolist() == [[1, 1, 1], [0, 0, 0]]
    assert select_rows(torch.tensor([False, False]), chosen, 5.0).tolist() == [[5, 5, 5]] * 2
    assert host_norms(2 * torch.ones(2, 4), torch.zeros(2, 4)).tolist() == [[4.0, 4.0], [0.0, 0.0]]
    assert row_dot(chosen, torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, -1.0]])).tolist() == [6.0, -1.0]


@pytest.mark.parametrize(
    ("count", "factor", "expected"), [(5, 1.0, 5), (5, 2.0, 10), (5, 0.01, 1), (1, 0.5, 1), (0, 3.0, 0), (3, 1.5, 4)]
)
def test_steered_counts_are_rounded_and_never_below_one_unless_switched_off(
    count: int, factor: float, expected: int
) -> None:
    assert scaled(count, factor) == expected


def test_random_rows_are_those_of_their_seed_on_any_device_and_in_any_precision() -> None:
    like = torch.zeros(2, 5, dtype=torch.float64)
    rows = random_rows(3, like, 4)
    assert rows.shape == (3, 5)
    assert rows.dtype == torch.float64
    assert torch.equal(rows, random_rows(3, like, 4))
    assert torch.equal(rows.float(), random_rows(3, like.float(), 4))
    assert not torch.equal(rows, random_rows(3, like, 5))
    assert random_rows(3, like.to("meta"), 4).device.type == "meta"


def test_orthonormal_rows_span_what_was_given() -> None:
    rows = normal(3, P)
    basis = orthonormal_rows(rows)
    torch.testing.assert_close(basis @ basis.mT, torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(rows @ basis.mT @ basis, rows)


def test_the_power_iteration_is_the_growth_of_the_last_product() -> None:
    operator, start = Dense(spd(30)), normal(1, P)
    for steps in (1, 2, 5):
        before = start @ torch.linalg.matrix_power(operator.matrix, steps - 1)
        expected = (before @ operator.matrix).norm() / before.norm()
        assert power_iteration(operator.matvec, start, steps) == pytest.approx(float(expected))
    assert power_iteration(operator.matvec, start, 0) == 0.0
    assert power_iteration(operator.matvec, 0 * start, 3) == 0.0
    assert power_iteration(lambda vector: 0 * vector, start, 3) == 0.0


def test_products_and_spectra_that_are_no_numbers_are_refused() -> None:
    require_finite(torch.ones(2, 2))
    for value in (NAN, INF):
        with pytest.raises(NonFiniteError, match="curvature products are infinite or NaN"):
            require_finite(torch.tensor([1.0, value]))
    assert largest_eigenvalue(Dense(spd(30))) == pytest.approx(3.0)
    for largest in (-1e-9, NAN, INF):
        with pytest.raises(NonFiniteError, match="expected a positive finite number"):
            largest_eigenvalue(Dense(spd(30), claimed=largest))
    with pytest.raises(NonFiniteError, match=r"reports 0\.0 as its largest"):
        largest_eigenvalue(Dense(torch.zeros(3, 3)))


def test_states_are_told_by_the_name_of_their_solver() -> None:
    class Plain(Stateless):
        name = "plain"

    assert Plain().state_dict() == {"name": "plain"}
    Plain().load_state_dict({"name": "plain"})
    for state in ({}, {"name": "other"}):
        with pytest.raises(StateError, match="this monitor uses 'plain'"):
            Plain().load_state_dict(state)
    check_state({"name": "plain"}, "plain")


def test_what_steers_nothing_changes_nothing() -> None:
    assert Control() == Control(depth=1.0, step=1.0, rank=1.0, budget=0.0)
