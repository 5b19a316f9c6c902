from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.errors import SettingError
from sgoif.stability import bounds
from sgoif.stability.bounds import (
    TopKCertificate,
    averaging_width,
    conf_error,
    coverage,
    empirical_bernstein,
    misranking_bound,
    solver_error_bound,
    top_k_certificate,
)

torch.set_num_threads(1)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def symmetric(values: torch.Tensor, seed: int) -> torch.Tensor:
    q = torch.linalg.qr(normal(len(values), len(values), seed=seed)).Q
    return (q * values) @ q.mT


seeds = st.integers(0, 10_000)


@settings(max_examples=60, deadline=None)
@given(seed=seeds, size=st.integers(1, 10), exponent=st.floats(-4, 4))
def test_solver_error_is_bounded_and_the_bound_is_reached(seed: int, size: int, exponent: float) -> None:
    values = 10 ** (exponent * torch.linspace(0, 1, size, dtype=torch.float64))
    h, g, phi = symmetric(values, seed), normal(size, seed=seed + 1), normal(size, seed=seed + 2)
    error = torch.linalg.solve(h, g) - phi
    bound = solver_error_bound((g - h @ phi).norm(), values.min())
    assert error.norm() <= bound * (1 + 1e-8)
    # Equality along the softest direction: nothing smaller would be a bound.
    soft = torch.linalg.eigh(h).eigenvectors[:, 0]
    assert float(solver_error_bound((h @ soft).norm(), values.min())) == pytest.approx(1, rel=1e-6)


def test_solver_error_is_unbounded_without_positive_curvature() -> None:
    bound = solver_error_bound(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.0, -1.0]))
    assert bound.tolist() == [2.0, math.inf, math.inf]
    assert float(solver_error_bound(0.0, 0.0)) == math.inf


def test_empirical_bernstein_is_the_formula() -> None:
    variance, m, bound, alpha = 0.04, 400, 1.5, 0.1
    log = math.log(3 / alpha)
    expected = math.sqrt(2 * variance * log / m) + 3 * bound * log / m
    assert float(empirical_bernstein(variance, m, bound, alpha)) == pytest.approx(expected)


def test_empirical_bernstein_broadcasts_and_never_says_more_than_is_known() -> None:
    count = torch.tensor([0, 1, 2, 50, 100_000])
    width = empirical_bernstein(torch.full((5,), 0.01), count, 2.0)
    assert width[:3].tolist() == [2.0, 2.0, 2.0]
    assert (width[3:].diff() < 0).all()
    assert width[-1] < 0.01
    assert empirical_bernstein(torch.ones(3, 1), torch.ones(4), torch.ones(4)).shape == (3, 4)
    for alpha in (0.0, 1.0, float("nan")):
        with pytest.raises(SettingError, match="alpha"):
            empirical_bernstein(1.0, 10, 1.0, alpha)


@settings(max_examples=30, deadline=None)
@given(
    seed=seeds,
    share=st.floats(0.0, 1.0),
    m=st.integers(1, 200),
    alpha=st.sampled_from([0.3, 0.1, 0.02]),
)
def test_empirical_bernstein_covers(seed: int, share: float, m: int, alpha: float) -> None:
    """Two-point variables in [−1, 1] are the worst case: their rare value may never have been seen."""
    trials = 2000
    draws = torch.rand(trials, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) < share
    values = draws.double() * 2 - 1
    mean = 2 * share - 1
    width = empirical_bernstein(values.var(1, correction=0), m, 1 + abs(mean), alpha)
    missed = float(((values.mean(1) - mean).abs() > width + 1e-12).double().mean())
    assert missed <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / trials)


def test_misranking() -> None:
    assert float(misranking_bound(1.0, 0.2, 0.5, 8)) == pytest.approx(math.exp(-(0.8**2) * 8 / (2 * 0.5)))
    gap = torch.tensor([0.1, 0.2, 0.5, 1.0])
    assert misranking_bound(gap, 0.2, 0.5, 8)[:2].tolist() == [1.0, 1.0]
    assert (misranking_bound(gap, 0.2, 0.5, 8).diff()[1:] < 0).all()
    # Without noise only the bias can swap two examples.
    assert misranking_bound(gap, 0.2, 0.0, 8).tolist() == [1.0, 1.0, 0.0, 0.0]
    assert misranking_bound(gap, 0.0, 0.5, 0).tolist() == [1.0] * 4


@settings(max_examples=20, deadline=None)
@given(seed=seeds, gap=st.floats(0, 1.5), bias=st.floats(-0.3, 0.3), m=st.integers(1, 30))
def test_misranking_holds_for_gaussian_probes(seed: int, gap: float, bias: float, m: int) -> None:
    trials, sigma = 4000, 0.8
    estimate = gap + bias + sigma * normal(trials, m, seed=seed).mean(1)
    bound = float(misranking_bound(gap, abs(bias), sigma**2, m))
    assert float((estimate <= 0).double().mean()) <= bound + 3 / math.sqrt(trials)


def test_confidence_error() -> None:
    assert conf_error(torch.tensor([0.0, 0.25, 1.0]), -4.0).tolist() == [4.0, 3.0, 0.0]


@settings(max_examples=200, deadline=None)
@given(data=st.data(), n=st.integers(1, 12), seed=seeds)
def test_certified_top_k_survives_every_admissible_error(data: st.DataObject, n: int, seed: int) -> None:
    k = data.draw(st.integers(1, n))
    scores = torch.tensor(data.draw(st.lists(st.floats(-5, 5), min_size=n, max_size=n)), dtype=torch.float64)
    bounds = torch.tensor(data.draw(st.lists(st.floats(0, 2), min_size=n, max_size=n)), dtype=torch.float64)
    certificate = top_k_certificate(scores, bounds, k)
    inside = set(torch.topk(scores, k).indices.tolist())
    outside = torch.tensor([i not in inside for i in range(n)])
    # The worst admissible truth: everything inside falls, everything outside rises.
    worst = torch.where(outside, scores + bounds, scores - bounds)
    keeps = k == n or bool(worst[~outside].min() > worst[outside].max())
    assert certificate.certified == keeps
    if certificate.certified:
        for draw in range(10):
            share = torch.rand(n, generator=torch.Generator().manual_seed(seed + draw), dtype=torch.float64) * 2 - 1
            truth = scores + share * bounds
            assert set(torch.topk(truth, k).indices.tolist()) == inside
    if certificate.uniform:
        assert certificate.certified


def test_certificate_reports_margin_and_both_conditions() -> None:
    scores = torch.tensor([0.0, 5.0, 3.0, 1.0])
    uniform = top_k_certificate(scores, 0.9, 2)
    assert (uniform.k, uniform.certified, uniform.uniform, uniform.margin) == (2, True, True, 2.0)
    # One wide interval far from the cut spoils the uniform condition only.
    pairwise = top_k_certificate(scores, torch.tensor([0.1, 1.5, 0.1, 0.1]), 2)
    assert (pairwise.certified, pairwise.uniform, pairwise.largest_bound) == (True, False, 1.5)
    touching = top_k_certificate(scores, 1.0, 2)
    assert not touching.certified
    assert not touching.uniform
    assert top_k_certificate(scores, 100.0, 4).certified


def test_certificate_refuses_what_is_not_finite_or_not_sensible() -> None:
    scores = torch.tensor([0.0, 5.0, 3.0, 1.0])
    for poisoned in (torch.nan, torch.inf):
        for row in range(4):
            bounds = torch.zeros(4)
            bounds[row] = poisoned
            assert not top_k_certificate(scores, bounds, 2).certified
    for row in range(4):
        dirty = scores.clone()
        dirty[row] = torch.nan
        assert not top_k_certificate(dirty, 0.1, 2).certified
    for k in (0, 5):
        with pytest.raises(SettingError, match="1 ≤ k ≤ N"):
            top_k_certificate(scores, 0.1, k)
    with pytest.raises(SettingError, match="negative"):
        top_k_certificate(scores, -0.1, 2)


def test_coverage() -> None:
    assert coverage(torch.zeros(0, 5)) == 0.0
    assert coverage(torch.zeros(3, 5)) == 0.0
    assert coverage(torch.zeros(3, 0)) == 0.0
    assert coverage(torch.eye(4) * torch.tensor([[1e-30], [1.0], [5.0], [1e30]])) == pytest.approx(1)
    assert coverage(torch.tensor([[1.0, 0.0], [3.0, 0.0]])) == pytest.approx(0, abs=1e-12)
    # Two unit vectors at 60 degrees: eigenvalues 1 ± 1/2. A zero row and a poisoned one change nothing.
    pair = torch.tensor([[2.0, 0.0], [0.5, math.sqrt(3) / 2], [0.0, 0.0], [math.nan, 1.0]], dtype=torch.float64)
    assert coverage(pair) == pytest.approx(0.5)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, rows=st.integers(1, 8), size=st.integers(1, 8))
def test_coverage_bounds_the_norm_of_combinations(seed: int, rows: int, size: int) -> None:
    directions, weights = normal(rows, size, seed=seed), normal(rows, seed=seed + 1)
    unit = directions / directions.norm(dim=-1, keepdim=True)
    value = coverage(directions)
    assert 0 <= value <= 1
    assert (weights @ unit).square().sum() >= value * weights.square().sum() * (1 - 1e-9) - 1e-12
    if rows > size:
        assert value == pytest.approx(0, abs=1e-12)


def test_the_width_of_a_mean_is_the_formula_and_covers() -> None:
    assert float(averaging_width(2.0, 8, 0.1)) == pytest.approx(math.sqrt(2 * 2.0 * math.log(10) / 8))
    values = torch.randn(4000, 12, generator=torch.Generator().manual_seed(0))
    width = averaging_width(values.var(1), 12, 0.1)
    covered = float((values.mean(1).abs() <= width).float().mean())
    assert 0.92 < covered < 0.98  # independent observations are covered more often than stated
    with pytest.raises(SettingError, match="alpha"):
        averaging_width(1.0, 2, 1.0)


def test_the_width_of_a_mean_is_stated_at_one_in_twenty_for_any_variance_and_count() -> None:
    assert float(averaging_width(0.25, 1)) == pytest.approx(math.sqrt(2 * 0.25 * math.log(20)))
    assert float(averaging_width(0.25, 0)) == float(averaging_width(0.25, 1)), "before the first it is that of one"
    assert float(averaging_width(-1e-9, 3)) == 0, "a variance below zero is rounding"


def test_everything_inside_is_certified_without_a_cut() -> None:
    whole = top_k_certificate(torch.tensor([0.0, 5.0, 3.0]), torch.tensor([1.0, 7.0, 2.0]), 3)
    assert whole == TopKCertificate(k=3, certified=True, margin=math.inf, largest_bound=7.0, uniform=True)


def test_the_stricter_condition_asks_for_less_than_half_the_margin() -> None:
    scores = torch.tensor([0.0, 5.0, 3.0, 1.0])  # the margin of the top two is 2
    for widest, expected in ((0.999, True), (1.0, False)):
        found = top_k_certificate(scores, torch.tensor([0.1, widest, 0.1, 0.1]), 2)
        assert (found.certified, found.uniform) == (True, expected)


def test_coverage_knows_no_units_and_never_exceeds_one() -> None:
    pair = torch.tensor([[2.0, 0.0], [0.5, math.sqrt(3) / 2]], dtype=torch.float64)
    scales = torch.tensor([[1e-200], [1e200]], dtype=torch.float64)  # squares of both leave the range
    assert coverage(pair * scales) == pytest.approx(0.5)
    assert coverage(torch.ones(1, 3)) == 1.0, "3 / √3² is above one in the last digit"


def test_coverage_is_summed_over_parts_of_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = normal(3, 10, seed=5)
    unit = rows / rows.norm(dim=1, keepdim=True)
    expected = float(torch.linalg.eigvalsh(unit @ unit.mT)[0])
    for entries in (1, 7, 2**23):
        monkeypatch.setattr(bounds, "GRAM_ENTRIES", entries)
        assert coverage(rows) == pytest.approx(expected)


def test_whole_numbers_give_fractions() -> None:
    found = conf_error(torch.tensor([0, 1]), torch.tensor([-4, 2]))
    assert found.is_floating_point()
    assert found.tolist() == [4.0, 0.0]
