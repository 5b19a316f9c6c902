"""How many labels are wrong: each estimator where its answer is known, and the interval that they leave open."""

from __future__ import annotations

import numpy as np
import pytest
from calibration_cases import known

from sgoif.tasks.labels.noise_rate import knows_enough, noise_rate, surest


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
    for seen in (0.7, 0.95):
        rate, found = noise_rate(known(4000, seen), held_out, 4, np.full(1000, 0.1))
        assert found["disagreement"] == pytest.approx(0.2)
        assert rate.high == pytest.approx(0.2 + 1.645 * np.sqrt(0.16 / 1000))
        share = found["anchor points"]
        lower = share - 1.645 * np.sqrt(share * (1 - share) / 200)
        assert rate.low == pytest.approx(min(lower, found["anchor points of the training"]))
        assert rate.estimate == pytest.approx(np.clip(0.1, rate.low, rate.high))
        assert rate.listed == pytest.approx(np.sqrt(rate.low * rate.estimate))
    assert noise_rate(held_out, held_out, 4, np.full(1000, 0.9))[0].estimate == rate.high


def test_a_model_that_has_learned_labels_by_heart_proves_nothing() -> None:
    rate, found = noise_rate(known(4000, 1.0), known(1000, 0.8), 4, np.full(1000, 0.1))
    assert found["anchor points of the training"] == 0
    assert rate.low == rate.listed == 0
    assert rate.estimate == pytest.approx(0.1)


def test_without_a_channel_half_of_the_disagreement_is_believed() -> None:
    rate, found = noise_rate(known(4000, 0.8), known(1000, 0.8), 4, None)
    assert found["channel"] == pytest.approx(0.1)
    assert rate.low <= rate.estimate <= rate.high


def test_clean_labels_of_a_good_model_leave_no_room_for_noise() -> None:
    rate, _ = noise_rate(known(4000, 1.0), known(1000, 1.0), 4, np.zeros(1000))
    assert rate == (0, 0, 0)


@pytest.mark.parametrize(
    ("agreement", "classes", "enough"), [(0.4, 10, True), (0.39, 10, False), (0.5, 4, True), (0.49, 4, False)]
)
def test_a_model_has_to_be_a_third_of_the_way_from_chance_to_always(
    agreement: float, classes: int, enough: bool
) -> None:
    assert knows_enough(agreement + 1e-9, classes) == enough
