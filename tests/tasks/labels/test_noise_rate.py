"""How many labels are wrong: each estimator where its answer is known, and the interval that they leave open."""

from __future__ import annotations

import numpy as np
import pytest
from calibration_cases import known, mixture

from sgoif.tasks.labels.noise_rate import ALLOWANCE, knows_enough, mixture_proportion, noise_rate, surest


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.4])
def test_the_mixture_proportion_is_the_rate_where_decoys_look_like_errors(rate: float) -> None:
    v, _, decoys = mixture(rate, decoys=3000)
    assert mixture_proportion(v, decoys) == pytest.approx(rate, abs=0.03)


def test_the_mixture_proportion_is_nearly_none_where_nothing_looks_like_a_decoy() -> None:
    v, _, decoys = mixture(0.0, apart=5.0)
    assert mixture_proportion(v, decoys) < 0.01


def test_errors_that_are_less_suspicious_than_decoys_are_not_in_the_proportion() -> None:
    v, _, _ = mixture(0.3, apart=1.5)
    _, _, decoys = mixture(0.3, apart=4.0)
    assert mixture_proportion(v, decoys) < 0.1


def test_the_mixture_proportion_by_brute_force() -> None:
    random = np.random.default_rng(3)
    v, decoys = random.normal(size=500), random.normal(1.0, size=41)
    ratios = [(v >= depth).mean() / (decoys >= depth).mean() for depth in decoys if (decoys >= depth).mean() >= 0.5]
    assert mixture_proportion(v, decoys) == pytest.approx(min(min(ratios), 1.0))


def test_the_surest_are_a_fifth_of_every_class() -> None:
    random = np.random.default_rng(0)
    likeliest, probability = random.integers(3, size=100), random.random(100)
    chosen = surest(probability, likeliest)
    for label in range(3):
        own = likeliest == label
        assert chosen[own].sum() == np.ceil(0.2 * own.sum())
        assert probability[own & chosen].min() > probability[own & ~chosen].max()
    alone = surest(np.array([0.3, 0.9]), np.array([0, 5]))
    assert alone.all()


def test_the_interval_goes_from_what_all_support_to_the_disagreement() -> None:
    held_out = known(1000, 0.8)
    v, _, decoys = mixture(0.2)
    rate, found = noise_rate(held_out, 4, np.full(1000, 0.1), (v, decoys))
    assert found["disagreement"] == pytest.approx(0.2)
    assert rate.high == pytest.approx(0.2 + 1.645 * np.sqrt(0.16 / 1000))
    share = found["anchor points"]
    lower = share - 1.645 * np.sqrt(share * (1 - share) / 200)
    assert rate.low == pytest.approx(ALLOWANCE * min(lower, found["mixture proportion"]))
    assert found["supported"] == min(share, found["mixture proportion"])
    assert rate.estimate == pytest.approx(np.clip(0.1, rate.low, rate.high))
    alone, told = noise_rate(held_out, 4, np.full(1000, 0.9), None)
    assert alone.low == pytest.approx(ALLOWANCE * lower)
    assert told["supported"] == pytest.approx(lower)
    assert alone.estimate == alone.high


def test_without_a_channel_half_of_the_disagreement_is_believed() -> None:
    rate, found = noise_rate(known(1000, 0.8), 4, None, None)
    assert found["channel"] == pytest.approx(0.1)
    assert rate.low <= rate.estimate <= rate.high


def test_clean_labels_of_a_good_model_leave_no_room_for_noise() -> None:
    rate, found = noise_rate(known(1000, 1.0), 4, np.zeros(1000), None)
    assert rate == (0, 0, 0)
    assert found["supported"] == 0


@pytest.mark.parametrize(
    ("agreement", "classes", "enough"), [(0.4, 10, True), (0.39, 10, False), (0.5, 4, True), (0.49, 4, False)]
)
def test_a_model_has_to_be_a_third_of_the_way_from_chance_to_always(
    agreement: float, classes: int, enough: bool
) -> None:
    assert knows_enough(agreement + 1e-9, classes) == enough
