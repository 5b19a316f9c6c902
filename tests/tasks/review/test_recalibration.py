from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sgoif.errors import SettingError
from sgoif.tasks.review.recalibration import length_at_fdr, length_of_best_f1, prior_by_rank, recalibrated

NONE = np.zeros(0, dtype=int)


def test_without_looks_nothing_changes_but_the_ends() -> None:
    given = np.array([0.9, 0.3, 0.01])
    np.testing.assert_allclose(recalibrated(given, NONE, NONE == 1), given)
    np.testing.assert_allclose(recalibrated(np.array([1.0, 0.0]), NONE, NONE == 1), [0.998, 0.002])


def test_many_looks_decide_alone() -> None:
    draws = np.random.default_rng(0)
    score = draws.normal(size=4000)
    given, true = 1 / (1 + np.exp(-score)), 1 / (1 + np.exp(-(2 * score - 1)))
    fitted = recalibrated(given, np.arange(4000), draws.random(4000) < true)
    assert np.abs(fitted - true).max() < 0.05


@pytest.mark.parametrize("wrong", [True, False])
def test_looks_that_agree_do_not_make_anything_certain(wrong: bool) -> None:
    fitted = recalibrated(np.linspace(0.99, 0.01, 500), np.arange(0, 500, 10), np.full(50, wrong))
    assert (fitted > 0.5).all() if wrong else (fitted < 0.5).all()
    assert ((fitted > 0) & (fitted < 1)).all()


def test_a_prior_that_is_upside_down_becomes_flat_not_upside_down() -> None:
    looks = np.arange(0, 1000, 5)
    fitted = recalibrated(np.linspace(0.99, 0.01, 1000), looks, looks > 500)
    assert (np.diff(fitted) <= 1e-12).all()


def test_what_is_not_known_gets_the_mean() -> None:
    np.testing.assert_allclose(recalibrated(np.array([0.2, np.nan, 0.4]), NONE, NONE == 1)[1], 0.3)
    np.testing.assert_allclose(recalibrated(np.full(3, np.nan), NONE, NONE == 1), 0.5)


def test_lists_follow_from_probabilities() -> None:
    p = np.array([1, 1, 0.9, 0.4, 0.1, 0, 0])
    sums = [2 * p[:k].sum() / (k + p.sum()) for k in range(1, 8)]
    assert length_of_best_f1(p) == int(np.argmax(sums)) + 1 == 3
    assert [length_at_fdr(p, fdr) for fdr in (0.01, 0.1, 0.2)] == [2, 3, 4]
    assert length_at_fdr(np.full(4, 0.2), 0.1) == 0
    with pytest.raises(SettingError, match="fdr=0"):
        length_at_fdr(p, 0)


@settings(deadline=None)
@given(hnp.arrays(np.float64, st.integers(0, 25), elements=st.floats(0, 1)), st.floats(0.001, 0.999))
def test_the_longest_list_within_the_rate_by_brute_force(probability: np.ndarray, fdr: float) -> None:
    ordered = np.sort(probability)[::-1]
    right = [(1 - ordered[:k]).sum() for k in range(len(ordered) + 1)]
    found = length_at_fdr(ordered, fdr)
    assert right[found] <= fdr * found + 1e-9
    assert all(right[k] > fdr * k - 1e-9 for k in range(found + 1, len(ordered) + 1))


def test_without_probabilities_the_rank_is_one() -> None:
    p = prior_by_rank(1000)
    assert (np.diff(p) < 0).all()
    assert p[199] == pytest.approx(0.5, abs=0.01)
