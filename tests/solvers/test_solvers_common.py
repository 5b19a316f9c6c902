"""What every solver must do, whatever its method."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import get_args

import pytest
import torch
from dense_operators import Dense, K, P, SpectralDense, badly_scaled, normal, spd
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.errors import NonFiniteError, SettingError, StateError
from sgoif.solvers import (
    SOLVERS,
    ConjugateGradient,
    Control,
    LowRankSplit,
    Neumann,
    Richardson,
    Solver,
    SolverName,
    make_solver,
)
from sgoif.stability.bounds import solver_error_bound

CONDITIONS = [3.0, 30.0, 300.0]

# How each solver is asked for a converged answer at a condition number, and for a short one.
LONG: dict[str, Callable[[float], Solver]] = {
    "richardson": lambda condition: Richardson(steps=int(20 * condition)),
    "neumann": lambda condition: Neumann(max_terms=int(40 * condition), tolerance=1e-9),
    "neumann-plain": lambda condition: Neumann(max_terms=int(20 * condition), tolerance=1e-9, preconditioner=False),
    "subspace": lambda condition: LowRankSplit(rank=16, inner=int(20 * condition)),
    "conjugate": lambda condition: ConjugateGradient(iterations=3 * P, tolerance=1e-10),
    "conjugate-plain": lambda condition: ConjugateGradient(iterations=3 * P, tolerance=1e-10, sketch=0),
}
SHORT: dict[str, Callable[[], Solver]] = {
    "richardson": lambda: Richardson(steps=5),
    "neumann": lambda: Neumann(max_terms=5, tolerance=0),
    "neumann-plain": lambda: Neumann(max_terms=5, tolerance=0, preconditioner=False),
    "subspace": lambda: LowRankSplit(rank=6, inner=4),
    "conjugate": lambda: ConjugateGradient(iterations=4, tolerance=0, sketch=6),
    "conjugate-plain": lambda: ConjugateGradient(iterations=4, tolerance=0, sketch=0),
}
short = pytest.mark.parametrize("make", SHORT.values(), ids=SHORT)
long = pytest.mark.parametrize("make", LONG.values(), ids=LONG)


@long
@pytest.mark.parametrize("condition", CONDITIONS)
def test_reaches_the_dense_inverse(make: Callable[[float], Solver], condition: float) -> None:
    operator, rhs = Dense(spd(condition)), normal(K, P)
    solution = make(condition).solve(operator, rhs)
    assert operator.error(solution.phi, rhs) < 1e-6


@long
@pytest.mark.parametrize("condition", CONDITIONS)
def test_reaches_the_dense_inverse_in_float32(make: Callable[[float], Solver], condition: float) -> None:
    operator, rhs = Dense(spd(condition, dtype=torch.float32)), normal(K, P, dtype=torch.float32)
    solution = make(condition).solve(operator, rhs)
    assert solution.phi.dtype == solution.residual.dtype == torch.float32
    assert operator.error(solution.phi, rhs) < 2e-6 * condition
    # No product in float32 is better than this.
    rounding = torch.finfo(torch.float32).eps * float(operator.eigenvalues[-1]) * float(solution.phi.norm(dim=-1).max())
    torch.testing.assert_close(solution.residual, rhs - operator.matvec(solution.phi), atol=2 * rounding, rtol=0)


@short
@pytest.mark.parametrize("warm", [False, True])
def test_residual_is_what_it_says(make: Callable[[], Solver], warm: bool) -> None:
    operator, rhs = Dense(spd(100)), normal(K, P)
    solution = make().solve(operator, rhs, normal(K, P, seed=2) if warm else None)
    torch.testing.assert_close(solution.residual, rhs - operator.matvec(solution.phi), atol=1e-12, rtol=0)
    for norms, rows in zip(solution.norms, (rhs, solution.phi, solution.residual), strict=True):
        torch.testing.assert_close(norms, rows.norm(dim=-1))
    assert solution.history[-1] == pytest.approx(float(solution.norms.residual.mean()))
    assert len(solution.history) == solution.steps + 1


@short
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("kind", [Dense, SpectralDense])
def test_products_are_counted_honestly(make: Callable[[], Solver], warm: bool, kind: type[Dense]) -> None:
    operator, rhs = kind(spd(100)), normal(K, P)
    solution = make().solve(operator, rhs, normal(K, P, seed=2) if warm else None)
    assert solution.products == operator.calls > 0


@short
def test_history_starts_at_the_start(make: Callable[[], Solver]) -> None:
    operator, rhs, start = Dense(spd(10)), normal(K, P), 0.1 * normal(K, P, seed=2)
    assert make().solve(operator, rhs).history[0] == pytest.approx(float(rhs.norm(dim=-1).mean()))
    expected = float((rhs - start @ operator.matrix).norm(dim=-1).mean())
    assert make().solve(operator, rhs, start).history[0] == pytest.approx(expected)


@short
def test_deeper_is_better_in_the_norm_of_the_operator(make: Callable[[], Solver]) -> None:
    operator, rhs = Dense(spd(100)), normal(K, P)
    errors = [
        operator.energy_error(make().solve(operator, rhs, control=Control(depth=depth)).phi, rhs)
        for depth in (0.4, 1, 2, 4)
    ]
    for less, more in pairwise(errors):
        assert (more < less).all()


@short
def test_depth_scales_the_number_of_steps(make: Callable[[], Solver]) -> None:
    operator, rhs = Dense(spd(100)), normal(K, P)
    plain = make().solve(operator, rhs).steps
    assert make().solve(operator, rhs, control=Control(depth=2)).steps == 2 * plain
    assert make().solve(operator, rhs, control=Control(depth=0)).steps == 1


@short
def test_a_budget_ends_a_call_as_soon_as_every_residual_is_within_it(make: Callable[[], Solver]) -> None:
    operator, rhs = Dense(spd(30)), normal(K, P)
    plain = make().solve(operator, rhs, control=Control(depth=4))
    budget = 0.5 * float(rhs.norm(dim=1).max())
    found = make().solve(operator, rhs, control=Control(depth=4, budget=budget))
    assert bool((found.residual.norm(dim=1) <= budget).all())
    assert found.steps < plain.steps
    assert found.products < plain.products


@short
def test_warm_start_helps(make: Callable[[], Solver]) -> None:
    operator, rhs = Dense(spd(100)), normal(K, P)
    near = (operator.exact(rhs) * 1.001) + 1e-3 * normal(K, P, seed=3)
    warm, cold = make().solve(operator, rhs, near), make().solve(operator, rhs)
    assert (operator.energy_error(warm.phi, rhs) < 0.1 * operator.energy_error(cold.phi, rhs)).all()


@short
def test_rows_are_independent_of_each_other_where_the_method_says_so(make: Callable[[], Solver]) -> None:
    operator, rhs = Dense(spd(30)), normal(K, P)
    whole = make().solve(operator, rhs).phi
    # Step sizes, scalings and bases come from H alone, so one right-hand side solved alone must agree.
    torch.testing.assert_close(make().solve(operator, rhs[2:3]).phi, whole[2:3], atol=1e-9, rtol=1e-7)


@short
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("kind", [Dense, SpectralDense])
def test_a_poisoned_row_stays_alone(make: Callable[[], Solver], poison: float, kind: type[Dense]) -> None:
    operator, rhs, start = kind(spd(30)), normal(K, P), 0.1 * normal(K, P, seed=2)
    clean = make().solve(operator, rhs, start)
    dirty = rhs.clone()
    dirty[3, 5] = poison
    others = [row for row in range(K) if row != 3]
    solution = make().solve(operator, dirty, start)
    torch.testing.assert_close(solution.phi[others], clean.phi[others], atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(solution.residual[others], clean.residual[others], atol=1e-10, rtol=1e-8)
    assert torch.equal(solution.phi[3], start[3])
    assert solution.residual[3].isnan().all()
    assert torch.tensor(solution.history).isfinite().all()


@short
def test_a_poisoned_start_begins_again_at_zero(make: Callable[[], Solver]) -> None:
    operator, rhs, start = Dense(1e4 * spd(30)), normal(K, P), torch.zeros(K, P, dtype=torch.float64)
    clean = make().solve(operator, rhs, start)
    start[2, 0], start[4] = torch.nan, 1e152  # the second overflows under H
    solution = make().solve(operator, rhs, start)
    torch.testing.assert_close(solution.phi, clean.phi, atol=1e-10, rtol=1e-8)


@short
def test_all_rows_poisoned_or_none_at_all(make: Callable[[], Solver]) -> None:
    operator = Dense(spd(30))
    solution = make().solve(operator, torch.full((K, P), torch.nan, dtype=torch.float64))
    assert (solution.phi == 0).all()
    assert solution.residual.isnan().all()
    assert make().solve(operator, torch.zeros(0, P, dtype=torch.float64)).phi.shape == (0, P)


@short
def test_zero_right_hand_side_and_exact_start_do_not_break_down(make: Callable[[], Solver]) -> None:
    operator, rhs = Dense(spd(30)), normal(K, P)
    rhs[1] = 0
    solution = make().solve(operator, rhs)
    assert (solution.phi[1] == 0).all()
    exact = operator.exact(rhs)
    solution = make().solve(operator, rhs, exact)
    assert operator.energy_error(solution.phi, rhs).max() < 1e-12
    assert (make().solve(Dense(torch.eye(P, dtype=torch.float64)), rhs).norms.residual[1] == 0).all()


@short
def test_inputs_are_not_modified(make: Callable[[], Solver]) -> None:
    operator, rhs, start = Dense(spd(30)), normal(K, P), normal(K, P, seed=2)
    before = rhs.clone(), start.clone()
    solution = make().solve(operator, rhs, start)
    solution.residual.zero_()
    solution.phi.zero_()
    assert torch.equal(rhs, before[0])
    assert torch.equal(start, before[1])


@short
def test_deterministic_and_global_generator_untouched(make: Callable[[], Solver]) -> None:
    operator, rhs = Dense(spd(30)), normal(K, P)
    before = torch.random.get_rng_state()
    first = make().solve(operator, rhs)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(123)
    assert torch.equal(make().solve(operator, rhs).phi, first.phi)


@short
def test_state_goes_on_exactly(make: Callable[[], Solver]) -> None:
    first, rhs = make(), normal(K, P)
    phi = first.solve(Dense(spd(30)), rhs).phi
    second = make()
    state = copy.deepcopy(first.state_dict())
    moved = Dense(spd(30, seed=5))
    expected = first.solve(moved, rhs, phi)
    second.load_state_dict(state)
    assert torch.equal(second.solve(moved, rhs, phi).phi, expected.phi)
    assert state["name"] == second.name
    with pytest.raises(StateError, match="same setting"):
        second.load_state_dict({"name": "other"})


@short
def test_shapes_are_checked(make: Callable[[], Solver]) -> None:
    operator = Dense(spd(30))
    with pytest.raises(SettingError, match="K, P"):
        make().solve(operator, normal(P))
    with pytest.raises(SettingError, match="differ in shape"):
        make().solve(operator, normal(K, P), normal(K - 1, P))


@pytest.mark.parametrize("make", [SHORT["richardson"], SHORT["neumann-plain"]])
@pytest.mark.parametrize("largest", [torch.nan, torch.inf, -1.0])
def test_useless_spectrum_is_refused(make: Callable[[], Solver], largest: float) -> None:
    with pytest.raises(NonFiniteError, match="largest eigenvalue"):
        make().solve(Dense(spd(30), claimed=largest), normal(K, P))


@pytest.mark.parametrize("make", [SHORT["subspace"], SHORT["conjugate"]])
def test_useless_products_are_refused_and_forgotten(make: Callable[[], Solver]) -> None:
    solver, sound = make(), Dense(spd(30))
    broken = Dense(spd(30))
    broken.matrix = torch.full_like(broken.matrix, torch.nan)
    with pytest.raises(NonFiniteError, match="curvature products"):
        solver.solve(broken, normal(K, P))
    assert torch.equal(solver.solve(sound, normal(K, P)).phi, make().solve(sound, normal(K, P)).phi)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(SHORT)),
    condition=st.floats(1.5, 1e4),
    size=st.integers(2, 12),
    scale=st.floats(1e-3, 1e3),
    seed=st.integers(0, 1000),
)
def test_error_is_bounded_by_the_residual(name: str, condition: float, size: int, scale: float, seed: int) -> None:
    operator = Dense(spd(condition, size, seed) * scale)
    rhs = normal(3, size, seed=seed)
    solution = SHORT[name]().solve(operator, rhs)
    error = (solution.phi - operator.exact(rhs)).norm(dim=-1)
    bound = solver_error_bound(solution.norms.residual, operator.spectrum().smallest)
    assert (error <= bound * (1 + 1e-9) + 1e-12 * condition / scale).all()


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(SHORT)),
    condition=st.floats(1.5, 1e3),
    spread=st.floats(1, 1e3),
    seed=st.integers(0, 1000),
)
def test_no_solver_moves_away_from_the_solution(name: str, condition: float, spread: float, seed: int) -> None:
    operator = Dense(badly_scaled(condition, spread, 12, seed))
    rhs, start = normal(3, 12, seed=seed), normal(3, 12, seed=seed + 1)
    before = operator.energy_error(start, rhs)
    after = operator.energy_error(SHORT[name]().solve(operator, rhs, start).phi, rhs)
    assert (after <= before * (1 + 1e-9)).all()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("richardson", {"steps": 0}),
        ("neumann", {"max_terms": 0}),
        ("neumann", {"tolerance": 1.0}),
        ("neumann", {"tolerance": float("nan")}),
        ("neumann", {"jump": 1.0}),
        ("subspace", {"rank": 0}),
        ("subspace", {"inner": 0}),
        ("subspace", {"power": -1}),
        ("conjugate", {"iterations": 0}),
        ("conjugate", {"tolerance": -1e-3}),
        ("conjugate", {"sketch": -1}),
    ],
)
def test_bad_settings_raise(name: str, options: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(options))):
        make_solver(name, **options)


def test_solvers_are_made_by_name() -> None:
    assert tuple(SOLVERS) == get_args(SolverName)
    for name, kind in SOLVERS.items():
        solver = make_solver(name)
        assert isinstance(solver, kind)
        assert solver.name == name
    assert make_solver("richardson", steps=9).steps == 9  # type: ignore[attr-defined]
    with pytest.raises(SettingError, match="richardson, neumann, subspace, conjugate"):
        make_solver("newton")
    with pytest.raises(SettingError, match="depth; it has iterations, tolerance, sketch, seed"):
        make_solver("conjugate", depth=3)


@pytest.mark.parametrize("name", SOLVERS)
def test_settings_are_frozen(name: str) -> None:
    with pytest.raises(AttributeError):
        make_solver(name).rank = 3  # type: ignore[attr-defined]
