"""Measures by hand, against scikit-learn, and what must not change them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.errors import SettingError
from sgoif_bench.ood.measures import aupr, auroc, averages, fpr_at_recall, ood_measures

INSIDE, OUTSIDE = [0.1, 0.2, 0.3, 0.4], [0.35, 0.5, 0.6]


def test_by_hand() -> None:
    found = ood_measures(INSIDE, OUTSIDE, "ood")
    # 0.35 beats three of four, the others all four.
    assert found["auroc"] == pytest.approx(11 / 12)
    # Outliers found: precision 1 up to recall 2/3; then 0.4 comes between, and 0.35 is found at precision 3/4.
    assert found["aupr_out"] == pytest.approx(2 / 3 + 1 / 3 * (2 / 3 + 3 / 4) / 2)
    # In-distribution found from below: precision 1 up to recall 3/4; then 0.35 comes between, 0.4 is found at 4/5.
    assert found["aupr_in"] == pytest.approx(3 / 4 + 1 / 4 * (3 / 4 + 4 / 5) / 2)
    # All three outliers are needed for 95%: 0.4 is rejected with them. All four inside: 0.35 passes with them.
    assert found["fpr95_ood_positive"] == pytest.approx(1 / 4)
    assert found["fpr95_id_positive"] == pytest.approx(1 / 3)


def test_fpr95_is_the_one_of_the_protocol() -> None:
    assert ood_measures(INSIDE, OUTSIDE, "ood")["fpr95"] == pytest.approx(1 / 4)
    assert ood_measures(INSIDE, OUTSIDE, "id")["fpr95"] == pytest.approx(1 / 3)


def test_ninety_five_percent_of_twenty_is_nineteen() -> None:
    positive = np.arange(20.0)
    assert fpr_at_recall(positive, [0.5, 1.0, 5.0]) == pytest.approx(2 / 3), "the positive at 0 is not needed"
    assert fpr_at_recall(positive[1:], [0.5, 1.0, 5.0]) == pytest.approx(2 / 3), "18 of 19 are less than 95%"
    assert fpr_at_recall(positive, [0.5, 1.0, 5.0], recall=0.96) == 1.0


def test_equal_scores_are_taken_together() -> None:
    assert auroc([1.0, 1.0], [1.0, 1.0, 1.0]) == 0.5
    assert fpr_at_recall([1.0, 1.0], [1.0, 0.0]) == 0.5
    # One step from (recall 0, precision 1) to (1, 3/5).
    assert aupr([1.0, 1.0, 1.0], [1.0, 1.0]) == pytest.approx((1 + 3 / 5) / 2)


def continuous(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return generator.normal(0, 1, 300), generator.normal(1, 2, 170)


def rounded(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return tuple(part.round() for part in continuous(generator))  # type: ignore[return-value]


@pytest.mark.parametrize("draw", [continuous, rounded])
@pytest.mark.parametrize("seed", range(3))
def test_as_openood_computes_them(
    draw: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]], seed: int
) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    inside, outside = draw(np.random.default_rng(seed))
    found = ood_measures(inside, outside, "ood")
    score = np.concatenate([inside, outside])
    is_outside = np.repeat([0, 1], [len(inside), len(outside)])

    def area(truth: np.ndarray, value: np.ndarray) -> float:
        precision, recall, _ = sklearn.precision_recall_curve(truth, value)
        return float(sklearn.auc(recall, precision))

    def rate(truth: np.ndarray, value: np.ndarray) -> float:
        # All points of the curve: scikit-learn may else drop the one at which 95% is reached.
        false, true, _ = sklearn.roc_curve(truth, value, drop_intermediate=False)
        return float(false[np.argmax(true >= 0.95)])

    assert found["auroc"] == pytest.approx(sklearn.roc_auc_score(is_outside, score))
    assert found["aupr_out"] == pytest.approx(area(is_outside, score))
    assert found["aupr_in"] == pytest.approx(area(1 - is_outside, -score))
    assert found["fpr95_ood_positive"] == pytest.approx(rate(is_outside, score))
    assert found["fpr95_id_positive"] == pytest.approx(rate(1 - is_outside, -score))


def test_trapezoids_and_steps_are_not_the_same() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    steps = sklearn.average_precision_score([0] * len(INSIDE) + [1] * len(OUTSIDE), INSIDE + OUTSIDE)
    assert aupr(OUTSIDE, INSIDE) == pytest.approx(65 / 72)
    assert abs(aupr(OUTSIDE, INSIDE) - steps) > 0.01


SCORES = st.lists(st.integers(-20, 20).map(float), min_size=1, max_size=30)


@given(SCORES, SCORES)
def test_only_the_order_counts_and_both_sides_mirror(inside: list[float], outside: list[float]) -> None:
    found = ood_measures(inside, outside, "ood")
    stretched = ood_measures(np.exp(inside), np.exp(outside), "ood")
    assert found == pytest.approx(stretched)
    mirrored = ood_measures(-np.array(outside), -np.array(inside), "id")
    assert (mirrored["auroc"], mirrored["fpr95"]) == pytest.approx((found["auroc"], found["fpr95"]))
    assert (mirrored["aupr_in"], mirrored["aupr_out"]) == pytest.approx((found["aupr_out"], found["aupr_in"]))
    assert all(0 <= value <= 1 for value in found.values())


def test_perfect_and_reversed() -> None:
    perfect = ood_measures([0.0, 1.0], [2.0, 3.0], "ood")
    assert (perfect["auroc"], perfect["aupr_in"], perfect["aupr_out"], perfect["fpr95"]) == (1, 1, 1, 0)
    assert ood_measures([2.0, 3.0], [0.0, 1.0], "ood")["auroc"] == 0
    assert ood_measures([2.0, 3.0], [0.0, np.inf], "ood")["auroc"] == 0.5, "an infinite score is the highest"


def test_means_over_groups() -> None:
    figures = [{"auroc": value, "aupr_in": value, "aupr_out": value, "fpr95": 1 - value} for value in (0.5, 0.7, 0.9)]
    measured = dict(zip("abc", figures, strict=True))
    found = averages(measured, {"a": "near", "b": "near", "c": "far", "d": "far"})
    assert (found["near_auroc"], found["far_auroc"]) == pytest.approx((0.6, 0.9))
    assert found["mean_fpr95"] == pytest.approx(0.3), "every set weighs the same"
    only = averages({"a": measured["a"]}, {"a": "near", "c": "far"})
    assert only["far_aupr_in"] is None


@pytest.mark.parametrize(
    ("inside", "outside", "message"),
    [
        ([], [1.0], r"shape \(0,\)"),
        ([[1.0]], [1.0], r"shape \(1, 1\)"),
        ([1.0, float("nan")], [1.0], "1 of 2 scores are not numbers"),
    ],
)
def test_what_cannot_be_compared_is_said(inside: list[float], outside: list[float], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        ood_measures(inside, outside, "ood")
    with pytest.raises(SettingError, match=r"recall = 0"):
        fpr_at_recall([1.0], [1.0], recall=0)
