"""Two modes, the upper one smaller: recovered where they are, not invented where they are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.tasks.poisoning.mixture import FLOOR, MAD, Mixture, fit_mixture, fit_mixtures, robust_units


def two_modes(count: int, share: float, at: float, spread: float, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    upper = round(share * count)
    return np.concatenate([generator.normal(size=count - upper), generator.normal(at, spread, size=upper)])


@pytest.mark.parametrize(("count", "share", "at", "spread"), [(400, 0.1, 7, 0.7), (3000, 0.02, 6, 1), (900, 0.3, 9, 2)])
def test_what_was_planted_is_recovered(count: int, share: float, at: float, spread: float) -> None:
    values = two_modes(count, share, at, spread)
    found = fit_mixture(values)
    assert found.share == pytest.approx(share, abs=0.02)
    assert found.mode == pytest.approx(at, abs=0.5)
    assert found.mode_spread == pytest.approx(spread, rel=0.35)
    assert found.bulk == pytest.approx(0, abs=0.15)
    assert found.bulk_spread == pytest.approx(1, abs=0.1)
    called = found.posterior(values) > 0.5
    truth = np.arange(count) >= count - round(share * count)
    assert (called == truth).mean() > 0.99


def slow_climb(values: np.ndarray, start: float) -> tuple[float, float, float, float, float]:
    """Expectation-maximisation with one Python loop per example."""
    middle = float(np.sort(values)[(len(values) - 1) // 2])
    deviations = np.sort(np.abs(values - middle))
    floor = FLOOR * MAD * float(deviations[(len(deviations) - 1) // 2])
    share, bulk, mode = 0.05, middle, max(start, middle + max(floor, 1))
    bulk_spread = mode_spread = max(floor, 1.0)
    for _ in range(400):
        weights = []
        for v in values:
            upper = share / mode_spread * np.exp(-0.5 * ((v - mode) / mode_spread) ** 2)
            lower = (1 - share) / bulk_spread * np.exp(-0.5 * ((v - bulk) / bulk_spread) ** 2)
            weights.append(upper / (upper + lower) if v > bulk else 0.0)
        r = np.array(weights)
        mode, bulk = float(r @ values / r.sum()), float((1 - r) @ values / (1 - r).sum())
        mode_spread = max(floor, float(np.sqrt(r @ (values - mode) ** 2 / r.sum())))
        bulk_spread = max(floor, float(np.sqrt((1 - r) @ (values - bulk) ** 2 / (1 - r).sum())))
        share = float(r.mean())
    return share, bulk, bulk_spread, mode, mode_spread


def test_the_fit_is_that_of_a_slow_loop() -> None:
    values = two_modes(120, 0.15, 5, 0.8)
    wanted = slow_climb(values, float(np.quantile(values, 0.97)))
    found = fit_mixture(values)
    np.testing.assert_allclose(
        [found.share, found.bulk, found.bulk_spread, found.mode, found.mode_spread], wanted, atol=2e-3
    )


def test_counting_in_bins_changes_next_to_nothing_and_rows_are_fitted_on_their_own() -> None:
    rows = np.stack([two_modes(2000, 0.1, 7, 0.7, seed) for seed in range(3)])
    together = fit_mixtures(rows)
    for row, found in zip(rows, together, strict=True):
        exact = fit_mixtures(row[None], bins=2000)[0]
        assert found.mode == pytest.approx(exact.mode, abs=0.03)
        assert found.share == pytest.approx(exact.share, abs=2e-3)
        alone = fit_mixture(row)
        assert alone.mode == pytest.approx(found.mode, abs=1e-3)


@pytest.mark.parametrize("draw", ["normal", "exponential", "gumbel", "lognormal"])
def test_one_mode_is_not_called_two(draw: str) -> None:
    draws = {"normal": (0.0, 1.0), "exponential": (1.0,), "gumbel": (0.0, 1.0), "lognormal": (0.0, 0.5)}
    values = robust_units(getattr(np.random.default_rng(1), draw)(*draws[draw], size=1500))
    found = fit_mixture(values)
    assert found.contrast < 3.5 or (found.posterior(values) > 0.5).sum() < 3  # a single far value is no mode


def test_a_start_finds_a_mode_that_quantiles_miss() -> None:
    values = np.concatenate([np.random.default_rng(0).standard_t(4, size=3000), np.full(6, 14.0)])
    found = fit_mixture(values, starts=(14.0,))
    assert found.posterior(values)[-6:].min() > 0.5


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=40),
    st.floats(0.001, 0.5),
    st.floats(0.3, 20),
    st.floats(0.05, 5),
)
def test_the_posterior_rises_and_is_a_probability(
    values: list[float], share: float, mode: float, spread: float
) -> None:
    posterior = Mixture(share, 0.0, 1.0, mode, spread).posterior(np.array(values))
    assert ((posterior >= 0) & (posterior <= 1)).all()
    order = np.argsort(values, kind="stable")
    assert (np.diff(posterior[order]) >= 0).all()
    assert (posterior[np.array(values) <= 0] == 0).all()


def test_separation_and_contrast_by_hand() -> None:
    mixture = Mixture(0.1, 1.0, 2.0, 9.0, 1.5)
    assert mixture.separation == pytest.approx(4.0)
    assert mixture.contrast == pytest.approx(np.sqrt(2) * 8 / 2.5)
    assert mixture.distinctness == pytest.approx(4 * np.sqrt(2) * 3.2)


def test_robust_units_ignore_a_few_large_values_and_survive_constant_ones() -> None:
    values = np.array([1.0, 2, 3, 4, 5, 1000])
    units = robust_units(values)
    assert units[2] == pytest.approx(-0.5 / (1.4826 * 1.5))
    assert (robust_units(np.full(5, 3.0)) == 0).all()
    half = robust_units(np.array([0.0, 0, 0, 0, 1]))
    assert np.isfinite(half).all()
    np.testing.assert_allclose(robust_units(np.array([3.5]), like=values), 0)
