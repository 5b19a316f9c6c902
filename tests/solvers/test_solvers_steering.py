"""What the controller asks of a call: how deep, how far, how wide, and how small a residual is enough."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from dense_operators import Dense, K, P, normal, spd

from sgoif.errors import SettingError
from sgoif.solvers import ConjugateGradient, Control, LowRankSplit, Neumann, Richardson, Solver, make_solver
from sgoif.solvers.subspace import POWER_ITERATIONS

DEPTH: dict[str, Callable[[int], Solver]] = {
    "richardson": lambda steps: Richardson(steps=steps),
    "neumann": lambda steps: Neumann(max_terms=steps, tolerance=0),
    "neumann-plain": lambda steps: Neumann(max_terms=steps, tolerance=0, preconditioner=False),
    "subspace": lambda steps: LowRankSplit(rank=6, inner=steps),
    "conjugate": lambda steps: ConjugateGradient(iterations=steps, tolerance=0, sketch=6),
}


@pytest.mark.parametrize("name", DEPTH)
@pytest.mark.parametrize(("factor", "steps"), [(2.0, 8), (0.5, 2), (0.01, 1)])
def test_the_depth_is_a_factor_on_the_number_of_steps(name: str, factor: float, steps: int) -> None:
    operator, rhs = Dense(spd(100)), normal(K, P)
    found = DEPTH[name](4).solve(operator, rhs, control=Control(depth=factor))
    assert found.steps == steps
    torch.testing.assert_close(found.phi, DEPTH[name](steps).solve(operator, rhs).phi)


@pytest.mark.parametrize("name", DEPTH)
@pytest.mark.parametrize("unit", [1e-20, 1e20])
def test_no_solver_knows_the_units_of_the_curvature(name: str, unit: float) -> None:
    matrix, rhs = spd(100), normal(K, P)
    expected = DEPTH[name](5).solve(Dense(matrix), rhs).phi
    found = DEPTH[name](5).solve(Dense(unit * matrix), rhs).phi
    torch.testing.assert_close(unit * found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", DEPTH)
def test_a_budget_ends_a_call_once_every_residual_is_that_small(name: str) -> None:
    operator, rhs = Dense(spd(30)), normal(K, P)
    budget = 0.05 * float(rhs.norm(dim=1).max())
    enough = Control(budget=budget)
    found = DEPTH[name](500).solve(operator, rhs, control=enough)
    assert 1 < found.steps < 500
    assert float(found.norms.residual.max()) <= budget
    one_less = DEPTH[name](found.steps - 1).solve(operator, rhs, control=enough)
    assert float(one_less.norms.residual.max()) > budget
    solved = DEPTH[name](500).solve(operator, rhs, operator.exact(rhs), enough)
    assert solved.steps == 0


@pytest.mark.parametrize("kind", [Neumann, ConjugateGradient])
def test_of_tolerance_and_budget_the_larger_counts(kind: type[Neumann] | type[ConjugateGradient]) -> None:
    operator, rhs = Dense(spd(30)), normal(K, P)
    steps = [
        kind(300, tolerance).solve(operator, rhs, control=Control(budget=share * float(rhs.norm(dim=1).min()))).steps
        for tolerance, share in ((1e-2, 0.0), (1e-2, 1e-5), (1e-8, 1e-2), (1e-8, 0.0))
    ]
    assert steps[0] == steps[1] < steps[3]
    assert steps[2] < steps[3]


def test_the_step_shortens_the_refinement_of_a_split() -> None:
    """Along what the basis does not hold; in the basis nothing is left after every correction."""
    operator, rhs, solver = Dense(spd(30)), normal(K, P), LowRankSplit(rank=6, inner=1)
    whole = solver.solve(operator, rhs)
    state = solver.state_dict()
    halved = LowRankSplit(rank=6, inner=1, power=0)
    halved.load_state_dict(state)
    found = halved.solve(operator, rhs, control=Control(step=0.5))
    basis = halved.basis
    assert basis is not None
    rest = torch.eye(P, dtype=torch.float64) - basis.mT @ basis
    torch.testing.assert_close(found.residual @ basis.mT, torch.zeros(K, 6, dtype=torch.float64), atol=1e-9, rtol=0)
    assert (whole.phi @ rest).norm() > 1.5 * (found.phi @ rest).norm()


@pytest.mark.parametrize("power", [0, 1, 3])
def test_a_split_costs_its_basis_its_probe_and_its_steps(power: int) -> None:
    operator, rhs, solver = Dense(spd(30)), normal(K, P), LowRankSplit(rank=6, inner=3, power=power)
    for fresh in (4, 0, 0):
        operator.calls = 0
        found = solver.solve(operator, rhs)
        assert found.products == operator.calls == 6 * (power + fresh + 1) + POWER_ITERATIONS + 3 * K
    wider = solver.solve(operator, rhs, control=Control(rank=2.0))
    assert wider.products == 12 * (power + 4 + 1) + POWER_ITERATIONS + 3 * K, "new directions have no past"
    assert solver.solve(operator, rhs).products == 6 * (power + 1) + POWER_ITERATIONS + 3 * K


def test_a_basis_is_kept_in_the_order_of_falling_curvature_and_remembered() -> None:
    operator, rhs = Dense(spd(1000)), normal(K, P)
    solver = LowRankSplit(rank=5, power=6)
    assert solver.basis is None
    assert solver.state_dict() == {"name": "subspace", "basis": None}
    assert solver.last_energy == 0.0
    solver.solve(operator, rhs)
    basis = solver.basis
    assert basis is not None
    ritz = ((basis @ operator.matrix) * basis).sum(1)
    assert all(after < before for before, after in pairwise(ritz.tolist()))
    saved = solver.state_dict()["basis"]
    assert torch.equal(saved, basis)
    assert saved is not basis
    other = LowRankSplit(rank=5, power=6)
    other.load_state_dict({"name": "subspace", "basis": saved})
    saved.zero_()
    assert other.basis is not None
    assert torch.equal(other.basis, basis), "a state has memory of its own"
    other.solve(Dense(spd(1000, dtype=torch.float32)), rhs.float())  # in another precision it goes on all the same
    assert other.basis.dtype == torch.float32
    other.load_state_dict({"name": "subspace", "basis": None})
    assert other.basis is None
    other.solve(operator, torch.zeros_like(rhs))
    assert other.last_energy == 0.0, "there is nothing to be seen"


@pytest.mark.parametrize(
    ("name", "options", "fits"),
    [
        ("richardson", {"steps": 1}, True),
        ("richardson", {"decay": 0.5}, False),
        ("richardson", {"decay": 0.51}, True),
        ("richardson", {"decay": 1.0}, True),
        ("richardson", {"decay": 1.01}, False),
        ("richardson", {"decay": -0.1}, False),
        ("neumann", {"max_terms": 1}, True),
        ("neumann", {"tolerance": 0.0}, True),
        ("neumann", {"tolerance": -0.1}, False),
        ("neumann", {"jump": 1.01}, True),
        ("subspace", {"rank": 1}, True),
        ("subspace", {"inner": 1}, True),
        ("subspace", {"power": 0}, True),
        ("conjugate", {"iterations": 1}, True),
        ("conjugate", {"tolerance": 0.0}, True),
        ("conjugate", {"tolerance": 1.0}, False),
        ("conjugate", {"sketch": 0}, True),
    ],
)
def test_settings_reach_up_to_their_limits(name: str, options: dict[str, float], fits: bool) -> None:
    if fits:
        assert make_solver(name, **options).name == name
        return
    with pytest.raises(SettingError, match=next(iter(options))):
        make_solver(name, **options)


def test_a_step_that_makes_residuals_grow_is_halved_until_it_does_not() -> None:
    """λ_max is said to be a tenth of what it is: three halvings, and what is left is an eighth of the step."""
    operator, rhs = Dense(spd(30), claimed=0.3), normal(K, P)
    found = Richardson(steps=4).solve(operator, rhs)
    phi, rate, history = torch.zeros_like(rhs), 1 / 0.3, [float(rhs.norm(dim=1).mean())]
    for _ in range(4):
        candidate = phi + rate * (rhs - phi @ operator.matrix)
        norm = float((rhs - candidate @ operator.matrix).norm(dim=1).mean())
        phi, rate = (candidate, rate) if norm <= history[-1] else (phi, rate / 2)
        history.append(min(norm, history[-1]))
    torch.testing.assert_close(found.phi, phi)
    assert found.history == pytest.approx(history)
    assert found.steps == 4
