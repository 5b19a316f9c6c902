"""From a ranking and a rate to probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from calibration_cases import mixture

from sgoif.tasks.labels.calibration import STEEPER, Curve, offset, sigmoid, slope_of_probabilities
from sgoif.tasks.review.recalibration import length_at_fdr
from sgoif_bench.metrics import expected_calibration_error


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.4])
def test_probabilities_of_a_mixture_are_calibrated_at_its_rate(rate: float) -> None:
    """Of a channel that is as much less sure than the ranking as channels are."""
    v, wrong = mixture(rate, apart=3.0)
    odds = np.log(rate / (1 - rate)) + 3 * v - 4.5
    curve = Curve.fitted(v, v, sigmoid((odds - odds.mean()) / STEEPER + odds.mean()))
    p = curve.probability(v, rate)
    assert p.mean() == pytest.approx(rate, abs=0.01)
    assert expected_calibration_error(p, wrong) < 0.06
    order = np.argsort(-p)
    chosen = order[: length_at_fdr(p[order], 0.1)]
    assert 0.02 < 1 - wrong[chosen].mean() < 0.18


def test_probabilities_rise_with_suspicion_and_with_the_rate() -> None:
    v, _ = mixture(0.2)
    curve = Curve.fitted(v, v, sigmoid(2 * v - 4))
    order = np.argsort(v)
    low, high = curve.probability(v, 0.1)[order], curve.probability(v, 0.3)[order]
    assert (np.diff(low) >= 0).all()
    assert (high > low).all()
    assert (curve.probability(v, 0.0) == 0).all()


def test_a_ranking_has_no_unit() -> None:
    v, wrong = mixture(0.2)
    one = Curve.fitted(v, v, wrong.astype(float)).probability(v, 0.2)
    moved = 50 * v - 7
    np.testing.assert_allclose(one, Curve.fitted(moved, moved, wrong.astype(float)).probability(moved, 0.2), atol=1e-6)


def test_the_slope_is_steeper_the_further_apart_wrong_labels_are() -> None:
    found = []
    for apart in (1.0, 2.0, 4.0):
        v, wrong = mixture(0.2, apart=apart)
        found.append(slope_of_probabilities((v - np.median(v)) / v.std(), wrong.astype(float)))
    assert np.diff(found).min() > 0


@pytest.mark.parametrize("rate", [1e-4, 0.3, 0.99])
def test_the_offset_gives_the_rate(rate: float) -> None:
    points = np.random.default_rng(0).normal(size=1000)
    assert sigmoid(offset(points, 3.0, rate) + 3.0 * points).mean() == pytest.approx(rate, rel=1e-6)


def test_equal_scores_and_certain_channels_give_numbers() -> None:
    v = np.zeros(100)
    for wrong in (np.zeros(100), np.ones(100), np.full(100, 0.5)):
        p = Curve.fitted(v, v, wrong).probability(v, 0.1)
        assert p == pytest.approx(0.1)
    v, _ = mixture(0.2)
    assert np.isfinite(Curve.fitted(v, v, np.zeros(len(v))).probability(v, 1e-6)).all()
