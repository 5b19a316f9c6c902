"""The linear datamodeling score against scipy, its ceiling against simulated trainings."""

import numpy as np
import pytest

from sgoif.errors import SettingError
from sgoif_bench.fidelity.lds import (
    agreement,
    bootstrap,
    ceiling,
    errors,
    predictions,
    rank_correlations,
    reliability,
    share_of_seen,
    split_agreement,
)
from sgoif_bench.unlearning.measures import ranks as rank

pytestmark = pytest.mark.long


def test_correlations_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(20, 5)), generator.integers(4, size=(20, 5)).astype(float)
    expected = [stats.spearmanr(a[:, q], b[:, q]).statistic for q in range(5)]
    np.testing.assert_allclose(rank_correlations(a, b), expected, atol=1e-12)


def test_a_side_that_does_not_vary_correlates_with_nothing():
    assert rank_correlations(np.ones((4, 1)), np.arange(4.0)[:, None]).tolist() == [0.0]


def test_predictions_are_sums_over_kept_examples_up_to_a_constant():
    scores = np.array([[1.0, 2.0, 4.0], [-1.0, 0.0, 3.0]])
    kept = np.array([[True, True, False], [False, True, True], [True, False, False]])
    by_hand = np.array([[3.0, -1.0], [6.0, 3.0], [1.0, -1.0]])
    np.testing.assert_allclose(predictions(scores, kept), by_hand - scores.sum(1))


def test_additive_truth_is_predicted_perfectly_and_its_negative_never():
    generator = np.random.default_rng(1)
    scores = generator.normal(size=(6, 30))
    kept = generator.random((40, 30)) < 0.5
    measured = kept.astype(float) @ scores.T + 7.0
    assert agreement(scores, kept, measured).mean == pytest.approx(1.0)
    assert agreement(-scores, kept, measured).mean == pytest.approx(-1.0)


def test_errors_are_what_one_factor_for_all_queries_leaves_over():
    generator = np.random.default_rng(4)
    scores = generator.normal(size=(3, 40))
    kept = generator.random((4000, 40)) < 0.5
    measured = 3.0 * kept.astype(float) @ scores.T + np.array([7.0, 0.0, -1.0])
    np.testing.assert_allclose(errors(scores, kept, measured), 0.0, atol=1e-10)
    spread = np.array([0.5, 2.0, 8.0])
    noisy = measured + spread * generator.normal(size=measured.shape)
    np.testing.assert_allclose(errors(scores, kept, noisy), spread, rtol=0.05)
    np.testing.assert_allclose(errors(np.zeros((3, 40)), kept, noisy), noisy.std(0))


def test_scores_of_other_examples_predict_nothing():
    generator = np.random.default_rng(2)
    scores = generator.normal(size=(50, 200))
    kept = generator.random((60, 200)) < 0.5
    measured = kept.astype(float) @ generator.normal(size=(50, 200)).T
    found = agreement(scores, kept, measured)
    assert abs(found.mean) < 0.1
    assert found.low < found.mean < found.high


def test_ceiling_is_what_a_perfect_prediction_reaches():
    generator = np.random.default_rng(3)
    signal = generator.normal(size=(20000, 1, 3))
    trainings = signal + np.array([0.3, 1.0, 3.0]) * generator.normal(size=(20000, 2, 3))
    reached = rank_correlations(signal[:, 0], trainings.mean(1))
    np.testing.assert_allclose(ceiling(trainings), reached, atol=0.04)


def test_one_training_says_nothing_about_the_ceiling():
    assert ceiling(np.zeros((5, 1, 2))).tolist() == [1.0, 1.0]


def test_bootstrap_covers_the_mean_and_narrows():
    generator = np.random.default_rng(4)
    low, high = bootstrap(generator.normal(size=400))
    assert low < 0 < high
    assert high - low == pytest.approx(2 * 1.96 / 20, rel=0.15)


def test_tables_of_different_shape_are_refused():
    with pytest.raises(SettingError, match="two equal tables"):
        rank_correlations(np.zeros((3, 2)), np.zeros((3, 3)))


@pytest.mark.parametrize("sets", [40, 200])
def test_reliability_is_how_far_the_lds_of_queries_goes_with_what_it_would_be_from_many_sets(sets):
    generator = np.random.default_rng(2)
    scores = generator.normal(size=(600, 50))
    right = np.linspace(0.1, 0.7, 600)
    kept = generator.random((sets, 50)) < 0.5
    exact = kept.astype(float) @ scores.T
    noise = np.sqrt(1 / right**2 - 1) * np.linalg.norm(scores, axis=1) / 2
    measured = exact + noise * generator.normal(size=exact.shape)
    seen = rank_correlations(agreement(scores, kept, measured).by_query[:, None], right[:, None])[0]
    split = split_agreement(scores, kept, measured)
    assert reliability(split) == pytest.approx(seen**2, abs=0.12)
    # Half of the variance of this confidence is the LDS from unlimited sets, which is what the share recovers.
    confidence = rank(right) + rank(generator.normal(size=600))
    known = rank_correlations(confidence[:, None], right[:, None])[0]
    share, low, high = share_of_seen(confidence, agreement(scores, kept, measured).by_query, split)
    assert share == pytest.approx(known, abs=0.1)
    assert low < share < high < low + 0.5


def test_where_queries_do_not_differ_nothing_is_reliable():
    generator = np.random.default_rng(3)
    scores, kept = generator.normal(size=(200, 40)), generator.random((60, 40)) < 0.5
    measured = generator.normal(size=(60, 200))
    split = split_agreement(scores, kept, measured)
    assert reliability(split) < 0.15
    confidence = generator.normal(size=200)
    assert share_of_seen(confidence, agreement(scores, kept, measured).by_query, split) == (None, None, None)
