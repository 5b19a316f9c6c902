"""Detection metrics against scikit-learn, and the cases it leaves open."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score, roc_auc_score

from sgoif.errors import SettingError
from sgoif_bench.metrics import (
    auroc,
    average_precision,
    detection_metrics,
    flag_metrics,
    precision_at,
    precision_recall_curve,
    recall_at,
    top_kendall,
)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Labels of both kinds, and scores from so few values that ties are common."""
    size = draw(st.integers(2, 60))
    wrong = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    wrong[draw(st.integers(0, size - 1))] = True
    wrong[(int(np.flatnonzero(wrong)[0]) + 1) % size] = False
    score = np.array(draw(st.lists(st.integers(-4, 4), min_size=size, max_size=size)), dtype=float)
    return wrong, score


@given(problems())
def test_curves_equal_scikit_learn(problem: tuple[np.ndarray, np.ndarray]) -> None:
    wrong, score = problem
    assert average_precision(wrong, score) == pytest.approx(average_precision_score(wrong, score), abs=1e-12)
    assert auroc(wrong, score) == pytest.approx(roc_auc_score(wrong, score), abs=1e-12)


@given(problems(), st.floats(0.01, 1.0))
def test_cuts_are_means_over_the_order_of_ties(problem: tuple[np.ndarray, np.ndarray], share: float) -> None:
    wrong, score = problem
    size = max(1, round(share * len(wrong)))
    threshold = np.sort(score)[-size]
    above, tied = score > threshold, score == threshold
    expected = wrong[above].sum() + wrong[tied].mean() * (size - above.sum())
    assert precision_at(wrong, score, share) == pytest.approx(expected / size)
    assert recall_at(wrong, score, [share])[share] == pytest.approx(expected / wrong.sum())


def test_precision_at_one_percent_looks_at_the_top() -> None:
    score = np.arange(1000.0)
    wrong = np.zeros(1000, dtype=bool)
    wrong[[999, 998, 997, 5]] = True
    assert precision_at(wrong, score) == pytest.approx(0.3)
    assert recall_at(wrong, score) == {0.01: 0.75, 0.05: 0.75, 0.10: 0.75}


def test_minus_infinity_ranks_last() -> None:
    wrong = np.array([True, False, True, False])
    assert auroc(wrong, np.array([2.0, 1.0, -np.inf, 0.5])) == pytest.approx(0.5)
    assert average_precision(wrong, np.array([2.0, 1.0, -np.inf, 0.5])) == pytest.approx(0.75)


def test_names_of_the_result() -> None:
    names = detection_metrics(np.array([True, False]), np.array([1.0, 0.0]))
    assert set(names) == {"p_at_1", "aupr", "auroc", "recall_at_1", "recall_at_5", "recall_at_10"}


@pytest.mark.parametrize(
    ("wrong", "score", "message"),
    [
        ([False, False], [1.0, 2.0], "nothing to find"),
        ([True, False], [1.0, np.nan], "not numbers"),
        ([True, False], [1.0, 2.0, 3.0], "same length"),
    ],
)
def test_what_cannot_be_measured_is_said(wrong: list[bool], score: list[float], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        average_precision(wrong, score)


def test_auroc_needs_right_labels_and_cuts_need_a_share() -> None:
    with pytest.raises(SettingError, match="every label"):
        auroc([True, True], [1.0, 2.0])
    with pytest.raises(SettingError, match="share"):
        precision_at([True, False], [1.0, 2.0], share=0.0)


@given(problems(), problems())
def test_flags_equal_scikit_learn(problem: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> None:
    wrong, flagged = problem[0], np.resize(other[0], len(problem[0]))
    flagged[0] = True
    found = flag_metrics(wrong, flagged)
    assert found["precision"] == pytest.approx(precision_score(wrong, flagged))
    assert found["recall"] == pytest.approx(recall_score(wrong, flagged))
    assert found["f1"] == pytest.approx(f1_score(wrong, flagged))


def test_flags_of_nothing() -> None:
    assert flag_metrics([True, False], [False, False]) == {"precision": None, "recall": 0.0, "f1": 0.0}
    assert flag_metrics([False, False], [True, False]) == {"precision": 0.0, "recall": None, "f1": None}
    with pytest.raises(SettingError, match="same length"):
        flag_metrics([True, False], [True])


def test_a_curve_by_hand() -> None:
    wrong = np.array([True, False, True, False, True, False])
    score = np.array([6.0, 5.0, 4.0, 3.0, 2.0, 2.0])
    curve = precision_recall_curve(wrong, score, points=4)
    assert curve["recall"] == pytest.approx([0, 1 / 3, 2 / 3, 1], abs=1e-6)
    assert curve["precision"] == pytest.approx([1, 1, 2 / 3, 3 / 6], abs=1e-6)
    assert len(precision_recall_curve(wrong, score)["precision"]) == 101


@given(problems())
def test_a_fine_curve_has_the_area_of_the_average_precision(problem: tuple[np.ndarray, np.ndarray]) -> None:
    wrong, score = problem
    steps = 40 * int(wrong.sum())
    curve = precision_recall_curve(wrong, score, points=steps + 1)
    assert np.mean(curve["precision"][1:]) == pytest.approx(average_precision(wrong, score), abs=1e-5)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=40), st.floats(0.05, 1.0))
def test_agreement_of_the_top_equals_scipy_over_the_union(pairs: list[tuple[int, int]], share: float) -> None:
    first, second = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    size = max(1, round(share * len(first)))
    either = (first >= np.sort(first)[-size]) | (second >= np.sort(second)[-size])
    chosen = first[either], second[either]
    ours = top_kendall(first, second, share)
    if min(len(np.unique(values)) for values in chosen) < 2:
        assert np.isnan(ours)
    else:
        assert ours == pytest.approx(kendalltau(*chosen).statistic, abs=1e-12)


def test_agreement_of_the_top_looks_at_the_top_only() -> None:
    generator = np.random.default_rng(0)
    first = generator.permutation(20_000).astype(float)
    second = np.where(first >= 19_800, first, generator.permutation(19_800 * 2)[:20_000] / 2)
    assert top_kendall(first, second) == 1.0
    assert top_kendall(first, -first) == pytest.approx(-1.0)
    assert top_kendall(first, second, share=1.0) < 0.1
    infinite = np.where(first < 10_000, -np.inf, first)
    assert top_kendall(infinite, first) == 1.0
    with pytest.raises(SettingError, match="same length"):
        top_kendall([1.0, 2.0], [1.0])
    with pytest.raises(SettingError, match="not numbers"):
        top_kendall([1.0, np.nan], [1.0, 2.0])
