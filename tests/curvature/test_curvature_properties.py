"""What holds for every backend, whatever it is fed."""

from __future__ import annotations

import torch
from curvature_cases import CASES, make_factors, make_layout, random_vectors
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.curvature import CURVATURES, Curvature

OPTIONS = {"fisher": {"window": 12}, "lowrank": {"rank": 3, "refresh": 2, "buffer": 6}}


@st.composite
def curvatures(draw: st.DrawFn) -> Curvature:
    name = draw(st.sampled_from(sorted(CURVATURES)))
    case = draw(st.sampled_from(sorted(CASES)))
    curvature = CURVATURES[name](
        make_layout(case),
        damping=draw(st.floats(1e-2, 10)),
        decay=draw(st.floats(0, 0.99)),
        **OPTIONS.get(name, {}),
    )
    scale = 10.0 ** draw(st.integers(-4, 3))
    for _ in range(draw(st.integers(0, 4))):
        curvature.update(make_factors(case, draw(st.integers(1, 9)), draw(st.integers(0, 10**6)), scale))
    return curvature


@settings(max_examples=80, deadline=None)
@given(curvature=curvatures(), seed=st.integers(0, 10**6))
def test_symmetric_and_positive_definite(curvature: Curvature, seed: int) -> None:
    x, y = random_vectors(2, curvature.layout.size, seed).unsqueeze(1)
    hx, hy = curvature.matvec(x), curvature.matvec(y)
    scale = float(x.norm() * hy.norm() + y.norm() * hx.norm())
    assert abs(float((x * hy).sum() - (y * hx).sum())) <= 1e-5 * scale
    spectrum = curvature.spectrum()
    assert 0 < spectrum.smallest <= spectrum.largest
    energy, square = float((x * hx).sum()), float(x.square().sum())
    assert spectrum.smallest * square * (1 - 1e-4) <= energy <= spectrum.largest * square * (1 + 1e-4)


@settings(max_examples=80, deadline=None)
@given(curvature=curvatures(), seed=st.integers(0, 10**6))
def test_solve_undoes_matvec(curvature: Curvature, seed: int) -> None:
    x = random_vectors(3, curvature.layout.size, seed)
    tolerance = 1e-5 * curvature.spectrum().condition
    assert float((curvature.solve(curvature.matvec(x)) - x).norm()) <= max(tolerance, 1e-5) * float(x.norm())
    back = curvature.matvec(curvature.solve(x))
    assert float((back - x).norm()) <= max(tolerance, 1e-5) * float(x.norm())


@settings(max_examples=80, deadline=None)
@given(curvature=curvatures(), seed=st.integers(0, 10**6), away=st.floats(0.1, 10))
def test_error_is_bounded_by_the_residual(curvature: Curvature, seed: int, away: float) -> None:
    rhs, noise = random_vectors(2, curvature.layout.size, seed).unsqueeze(1)
    exact = curvature.solve(rhs)
    # Off by about as much as the solution is large: far above rounding, so that the bound is what is tested.
    iterate = exact + away * noise * exact.norm() / noise.norm()
    residual = rhs - curvature.matvec(iterate)
    error = float((iterate - exact).norm())
    assert error <= float(residual.norm()) / curvature.spectrum().smallest * (1 + 1e-3)


@settings(max_examples=40, deadline=None)
@given(curvature=curvatures())
def test_diagonal_is_the_diagonal(curvature: Curvature) -> None:
    dense = curvature.matvec(torch.eye(curvature.layout.size))
    torch.testing.assert_close(curvature.diagonal(), dense.diagonal(), rtol=1e-4, atol=0)
