from __future__ import annotations

import math

import numpy as np
import pytest

from sgoif.tasks.review.inversion import hypergeometric, interval_of_errors, smoothed

stats = pytest.importorskip("scipy.stats")


def interval(size: list[int], looks: list[int], wrong: list[int]) -> tuple[float, float]:
    """Where nothing is known beside the looks."""
    n, x = np.array(looks), np.array(wrong)
    return interval_of_errors(np.array(size), n, x, x, np.array(size) - (n - x))


@pytest.mark.parametrize(("looks", "wrong"), [(40, 0), (40, 1), (40, 13), (40, 40), (200, 3)])
def test_one_large_stratum_has_the_interval_of_clopper_and_pearson(looks: int, wrong: int) -> None:
    size = 10**7
    low, high = interval([size], [looks], [wrong])
    expected = stats.binomtest(wrong, looks).proportion_ci(method="exact")
    assert low / size == pytest.approx(expected.low, abs=2e-4)
    assert high / size == pytest.approx(expected.high, abs=2e-4)


def test_no_error_in_equally_dense_looks_is_no_error_in_all_of_them_together() -> None:
    _, high = interval([10**6, 2 * 10**6, 10**6], [10, 20, 10], [0, 0, 0])
    assert high / (4 * 10**6) == pytest.approx(1 - 0.025 ** (1 / 40), rel=2e-3)


def test_the_distribution_of_a_stratum_is_hypergeometric() -> None:
    found = hypergeometric(np.array([30.0]), np.array([7.0]), np.array([12]))[0]
    np.testing.assert_allclose(found, stats.hypergeom(30, 7, 12).pmf(np.arange(13)), atol=1e-12)


def test_a_number_of_errors_need_not_be_whole_and_nothing_is_impossible_by_rounding() -> None:
    parts = hypergeometric(np.array([30.0, 30.0, 10.0]), np.array([6.5, 0.3, 9.7]), np.array([12, 12, 9]))
    np.testing.assert_allclose(parts.sum(axis=1), 1)
    low, high = (stats.hypergeom(30, k, 12).cdf(2) for k in (7, 6))
    assert low < parts[0][:3].sum() < high
    assert parts[1][2:].sum() < 1e-12
    assert parts[2][:8].sum() < 1e-12


def test_a_good_ranking_is_worth_many_looks() -> None:
    size, looks = [10_000] * 10, [10] * 10
    ranked = interval(size, looks, [10] * 4 + [0] * 6)
    mixed = interval(size, looks, [4] * 10)
    plain = stats.binomtest(40, 100).proportion_ci(method="exact")
    assert ranked[1] - ranked[0] < 0.7 * (mixed[1] - mixed[0])
    assert mixed[1] - mixed[0] == pytest.approx(100_000 * (plain.high - plain.low), rel=0.05)


def test_right_and_wrong_mirror_each_other() -> None:
    size, looks, wrong = [500, 3000, 9000], [8, 9, 12], [7, 3, 1]
    low, high = interval(size, looks, wrong)
    mirrored = interval(size, looks, [n - x for n, x in zip(looks, wrong, strict=True)])
    assert mirrored == pytest.approx((12_500 - high, 12_500 - low), rel=1e-3)


def test_what_was_seen_whole_is_certain_and_what_was_not_seen_is_unknown() -> None:
    assert interval([5, 7], [5, 0], [2, 0]) == (2, 9)
    assert interval([5], [5], [0]) == (0, 0)
    with_unknown = interval([1000, 100], [20, 0], [3, 0])
    without = interval([1000], [20], [3])
    assert with_unknown == (without[0], without[1] + 100)


def test_what_is_known_beside_the_looks_limits_the_interval() -> None:
    free = interval([100], [10], [5])
    numbers = [np.array([value]) for value in (100, 10, 5)]
    low, high = interval_of_errors(*numbers, np.array([45]), np.array([55]))
    assert free[0] < 45 <= low < high <= 55 + 1e-9 < free[1]
    assert interval_of_errors(*numbers, np.array([90]), np.array([95])) == (90, 95)  # against all that the looks say
    assert interval_of_errors(*numbers, np.array([52]), np.array([52])) == (52, 52)


def test_less_may_be_missed_for_a_wider_interval() -> None:
    numbers = [np.array([value]) for value in (1000, 20, 5, 5, 985)]
    narrow, wide = interval_of_errors(*numbers), interval_of_errors(*numbers, 0.001)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_shares_lean_on_neighbours() -> None:
    found = smoothed(np.array([2.0, 0, 0, 0]), np.array([2.0, 2, 2, 2]))
    np.testing.assert_allclose(found, [2 / 4, 1 / 5, 1 / 5, 0])
    np.testing.assert_allclose(smoothed(np.array([3.0, 1.0]), np.array([6.0, 2.0])), [0.5, 0.5])
    assert smoothed(np.array([3.0]), np.array([4.0])) == pytest.approx(0.75)


@pytest.mark.parametrize("shares", [[0.4] * 20, [0.05] * 20, [0.95] * 8 + [0.02] * 12, [0.0, 1.0] * 10])
def test_it_covers_the_truth(shares: list[float]) -> None:
    draws = np.random.default_rng(5)
    size = np.linspace(100, 900, 20).astype(int)
    wrong = np.round(size * shares).astype(int)
    looks = np.full(20, 2)
    seen = draws.hypergeometric(wrong, size - wrong, looks, size=(250, 20))
    ends = [interval_of_errors(size, looks, x, x, size - (looks - x)) for x in seen]
    covered = np.mean([low <= wrong.sum() <= high for low, high in ends])
    assert covered >= 0.93 - 2 * math.sqrt(0.05 * 0.95 / 250)
