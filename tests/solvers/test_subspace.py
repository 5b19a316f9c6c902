from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from dense_operators import Dense, K, P, normal, spd

from sgoif.solvers import Control, LowRankSplit, Richardson
from sgoif.solvers.base import power_iteration


def steep(rank: int = 8, low: float = 2.0) -> torch.Tensor:
    """`rank` eigenvalues around 100 above a rest of condition number `low`."""
    operator = Dense(spd(low))
    values = operator.eigenvalues.clone()
    values[-rank:] = torch.linspace(50, 150, rank, dtype=torch.float64)
    return (operator.eigenvectors * values) @ operator.eigenvectors.mT


def test_basis_follows_the_dominant_eigenspace() -> None:
    operator, rhs = Dense(steep()), normal(K, P)
    solver = LowRankSplit(rank=8)
    solver.solve(operator, rhs)
    basis = solver.basis
    assert basis is not None
    torch.testing.assert_close(basis @ basis.mT, torch.eye(8, dtype=torch.float64))
    torch.testing.assert_close(basis.mT @ basis, operator.eigenvectors[:, -8:] @ operator.eigenvectors[:, -8:].mT)


def test_converges_at_the_rate_of_the_rest() -> None:
    operator, rhs = Dense(steep()), normal(K, P)  # condition 1,500, but 2 after the split
    split = LowRankSplit(rank=8, inner=25).solve(operator, rhs)
    plain = Richardson(steps=25).solve(operator, rhs)
    assert operator.error(split.phi, rhs) < 1e-5
    assert operator.error(plain.phi, rhs) > 0.5


def test_a_poor_basis_costs_speed_but_not_correctness() -> None:
    operator, rhs = Dense(spd(30)), normal(K, P)
    solver = LowRankSplit(rank=5, inner=600, power=0)
    solver.load_state_dict({"name": "subspace", "basis": normal(5, P, seed=9)})  # random, and not orthonormal
    solution = solver.solve(operator, rhs)
    assert operator.error(solution.phi, rhs) < 1e-6
    assert all(b <= a for a, b in pairwise(solution.history[1:]))


def test_coarse_part_is_the_formula_of_the_paper_for_an_invariant_basis() -> None:
    operator, rhs = Dense(steep()), normal(K, P)
    solver = LowRankSplit(rank=8, inner=1)
    phi = solver.solve(operator, rhs).phi
    q = solver.basis
    assert q is not None
    a = torch.linalg.solve(q @ operator.matrix @ q.mT, q @ rhs.mT).mT
    torch.testing.assert_close(phi @ q.mT, a, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("factor", "rank"), [(0.5, 4), (1, 8), (2, 16), (100, P), (0, 1)])
def test_rank_is_steered_and_never_exceeds_the_space(factor: float, rank: int) -> None:
    solver, operator, rhs = LowRankSplit(rank=8), Dense(steep()), normal(K, P)
    solver.solve(operator, rhs)
    solution = solver.solve(operator, rhs, control=Control(rank=factor))
    assert solver.basis is not None
    assert solver.basis.shape == (rank, P)
    torch.testing.assert_close(solution.residual, rhs - operator.matvec(solution.phi), atol=1e-9, rtol=0)
    if rank == P:
        assert operator.error(solution.phi, rhs) < 1e-9


def test_basis_is_warm_started_when_the_operator_moves() -> None:
    rhs, drift = normal(K, P), normal(P, P, seed=4) * 0.02
    moved = Dense(steep() + drift @ drift.mT)
    warm, cold = LowRankSplit(rank=8, power=0), LowRankSplit(rank=8, power=0)
    warm.solve(Dense(steep()), rhs)
    warm.solve(moved, rhs)
    cold.load_state_dict({"name": "subspace", "basis": normal(8, P, seed=5)})
    cold.solve(moved, rhs)
    true = moved.eigenvectors[:, -8:]
    seen = [float((s.basis @ true).square().sum()) / 8 for s in (warm, cold) if s.basis is not None]
    assert seen[0] > 0.999 > 0.6 > seen[1]
    assert warm.solve(moved, rhs).products < LowRankSplit(rank=8, power=0).solve(moved, rhs).products


def test_energy_is_the_share_the_basis_sees() -> None:
    operator, solver = Dense(steep()), LowRankSplit(rank=8)
    top = normal(3, 8) @ operator.eigenvectors[:, -8:].mT
    low = normal(3, P - 8) @ operator.eigenvectors[:, :-8].mT
    solver.solve(operator, top)
    assert solver.last_energy == pytest.approx(1, abs=1e-6)
    solver.solve(operator, low)
    assert solver.last_energy == pytest.approx(0, abs=1e-6)
    unit = top / top.norm(dim=-1, keepdim=True) + low / low.norm(dim=-1, keepdim=True)
    dirty = torch.cat([unit, torch.zeros(1, P), torch.full((1, P), torch.nan)])
    solver.solve(operator, dirty)
    assert solver.last_energy == pytest.approx(0.5, abs=1e-6)


def test_a_new_size_starts_a_new_basis() -> None:
    solver = LowRankSplit(rank=4)
    solver.solve(Dense(spd(10)), normal(K, P))
    small = Dense(spd(10, 12))
    assert torch.equal(solver.solve(small, normal(K, 12)).phi, LowRankSplit(rank=4).solve(small, normal(K, 12)).phi)


def test_contracts_even_when_the_rest_is_underestimated(monkeypatch: pytest.MonkeyPatch) -> None:
    operator, rhs = Dense(spd(30)), normal(K, P)
    honest = power_iteration
    monkeypatch.setattr("sgoif.solvers.subspace.power_iteration", lambda *given: honest(*given) / 20)
    solution = LowRankSplit(rank=4, inner=40).solve(operator, rhs)
    assert all(b <= a for a, b in pairwise(solution.history[1:]))
    assert solution.history[-1] < 0.5 * solution.history[0]
    torch.testing.assert_close(solution.residual, rhs - operator.matvec(solution.phi))
