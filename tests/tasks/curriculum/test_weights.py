"""The function from probabilities to weights: values by hand, the limits, and what it estimates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sgoif.tasks.curriculum.settings import CurriculumSettings
from sgoif.tasks.curriculum.weights import (
    ExampleWeights,
    believed_share,
    class_limits,
    harmfulness,
    lower_odds,
    sharpen,
    weigh,
)

FREE: dict[str, Any] = {"floor": 0.05, "class_floor": 0.0, "boost": 100.0, "balance": 1.0}


def by(p: list[float], given_: list[int], suggested: list[int], limits: Any = None, **options: Any) -> ExampleWeights:
    classes = max(*given_, *suggested) + 1
    return weigh(
        np.array(p),
        np.array(given_),
        np.array(suggested),
        np.ones(classes) if limits is None else np.array(limits),
        CurriculumSettings(**{**FREE, **options}),
    )


def test_weight_goes_to_the_class_that_the_example_seems_to_belong_to() -> None:
    # One of four zeros is a one with probability 0.8: class 1 has 2 left and gains 0.8, class 0 keeps 3.2 of 4.
    found = by([0.8, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 0, 0])
    np.testing.assert_allclose(found.weights, [0.2, 1, 1, 1, 1.4, 1.4])
    np.testing.assert_allclose(found.factor, [1, 1.4])


def test_certainly_wrong_keeps_the_floor() -> None:
    found = by([1.0, 0, 0], [0, 0, 1], [1, 1, 0], floor=0.1)
    np.testing.assert_allclose(found.weights, [0.1, 1, 1.9])


def test_without_balance_every_class_keeps_its_weight() -> None:
    found = by([0.8, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 0, 0], balance=0.0)
    np.testing.assert_allclose(found.weights, [0.25, 1.25, 1.25, 1.25, 1, 1])
    half = by([0.8, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 0, 0], balance=0.5)
    raw = np.bincount([0] * 4 + [1] * 2, weights=half.weights)
    assert raw[0] / raw[1] == pytest.approx(2 * (0.8 / 1.4) ** 0.5)


def test_a_bound_on_gains_is_made_up_for_by_everybody() -> None:
    # Class 1 would have the factor 2.6; class 0 gives up 1.6 of 3, as much as a factor of 2.2 can make up for.
    found = by([0.8, 0.8, 0, 0], [0, 0, 0, 1], [1, 1, 1, 0], boost=2.2)
    raw = np.array([0.2, 0.2, 1, 2.2])
    np.testing.assert_allclose(found.weights, raw / raw.mean())


def test_helpful_examples_keep_their_weight_however_improbable_their_label() -> None:
    h = harmfulness(np.array([0.5, 0.0, -0.1, -0.2, np.nan]), np.array([0.2, 0.2, 0.2, 0.2, np.inf]))
    np.testing.assert_allclose(h, [1, 1, 0.5, 0, 1])
    found = weigh(
        np.full(4, 0.9),
        np.array([0, 0, 0, 1]),
        np.array([1, 1, 1, 0]),
        np.ones(2),
        CurriculumSettings(**FREE),
        np.zeros(4),
    )
    np.testing.assert_allclose(found.weights, 1)


def test_hard_examples_with_a_right_label_are_not_touched() -> None:
    """Only the probability counts: there is no loss among the arguments, and none up to rounding is taken for p = 0."""
    found = by([0.0] * 4, [0, 0, 1, 1], [1, 1, 0, 0])
    assert (found.weights == 1).all()


def test_a_class_gives_up_at_most_its_share_of_wrong_labels() -> None:
    p = np.array([0.9, 0.9, 0.5, 0.1])
    found = by(p.tolist(), [0] * 4, [1] * 4, limits=[0.3, 0.3])
    assert found.taken.sum() == pytest.approx(0.3 * 4, rel=1e-6)
    odds = (found.taken / (1 - found.taken)) / (p / (1 - p))
    np.testing.assert_allclose(odds, odds[0])  # a common factor, so the order stays
    assert odds[0] < 1


def test_no_class_falls_below_its_floor() -> None:
    """A class that looks wrong from end to end, as one does that the model has not learned yet."""
    given_ = np.repeat([0, 1, 2], 50)
    p = np.where(given_ == 2, 0.95, 0.02)
    suggested = np.where(given_ == 2, 0, 2)
    for balance in (0.0, 0.5, 1.0):
        found = weigh(
            p,
            given_,
            suggested,
            np.ones(3),
            CurriculumSettings(floor=0.05, boost=3.0, class_floor=0.7, balance=balance),
        )
        totals = np.bincount(given_, weights=found.weights)
        assert totals[2] / 50 >= (0.7 if balance else 1.0) - 1e-9
    without = weigh(p, given_, suggested, np.ones(3), CurriculumSettings(**FREE))
    assert np.bincount(given_, weights=without.weights)[2] < 0.1 * 50


def test_no_class_gives_up_more_than_a_gain_can_make_up_for() -> None:
    found = by([0.9] * 6 + [0.0] * 6, [0] * 6 + [1] * 6, [1] * 6 + [0] * 6, balance=0.0, boost=2.0)
    assert found.taken[:6].sum() == pytest.approx(3)
    np.testing.assert_allclose(found.weights, 1)  # all are alike, so nothing is gained by weighing them


def test_exchange_between_classes_leaves_their_weights() -> None:
    """Under symmetric noise classes lose and gain alike: every wrong label can be weighed down."""
    p = np.array([0.9] * 4 + [0.0] * 6)
    given_, other = np.array([0, 0, 1, 1, 0, 0, 0, 1, 1, 1]), np.array([1, 1, 0, 0, 1, 1, 1, 0, 0, 0])
    found = weigh(p, given_, other, np.ones(2), CurriculumSettings(floor=0.05, class_floor=0.7, boost=3.0, balance=1.0))
    np.testing.assert_allclose(found.taken[:4], 0.9)
    np.testing.assert_allclose(np.bincount(given_, weights=found.weights), 5)


def test_weighted_loss_estimates_the_loss_on_right_labels() -> None:
    """Importance weights: with the true p and the true labels suggested, every class weighs what it truly has, and the
    weighed loss of any classifier is that on the right labels, up to sampling error."""
    generator = np.random.default_rng(0)
    channel = np.array([[0.6, 0.4, 0.0], [0.0, 0.9, 0.1], [0.0, 0.3, 0.7]])  # P(given | true)
    prior = np.array([0.5, 0.3, 0.2])
    true = generator.choice(3, size=200_000, p=prior)
    given_ = (generator.random(len(true))[:, None] > channel.cumsum(1)[true]).sum(1)
    # What is seen of an example says its class only with some certainty; p is the exact posterior of both.
    likeness = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.2, 0.1, 0.7]])  # P(seen | true)
    seen = (generator.random(len(true))[:, None] > likeness.cumsum(1)[true]).sum(1)
    joint = prior[None, :] * likeness.T[seen] * channel.T[given_]
    beliefs = joint / joint.sum(1, keepdims=True)
    p = 1 - beliefs[np.arange(len(true)), given_]
    others = beliefs.copy()
    others[np.arange(len(true)), given_] = 0
    suggested = (generator.random(len(true))[:, None] > (others / np.maximum(p, 1e-12)[:, None]).cumsum(1)).sum(1)
    found = weigh(
        p,
        given_,
        np.minimum(suggested, 2),
        np.ones(3),
        CurriculumSettings(floor=1e-6, class_floor=0.0, boost=100.0, balance=1.0),
    )
    np.testing.assert_allclose(
        np.bincount(given_, weights=found.weights) / len(true), np.bincount(true) / len(true), atol=0.004
    )
    losses = generator.random((3, 3)) * 3  # of any classifier: by what is seen and by label
    weighed = float((losses[seen, given_] * found.weights).mean())
    right, plain = float(losses[seen, true].mean()), float(losses[seen, given_].mean())
    assert weighed == pytest.approx(right, abs=0.01)
    assert abs(plain - right) > 0.05


@given(
    p=hnp.arrays(np.float64, 60, elements=st.floats(0, 1)),
    seed=st.integers(0, 2**31),
    floor=st.floats(0.01, 1),
    class_floor=st.floats(0, 1),
    boost=st.floats(1, 5),
    balance=st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_believed(
    p: Any, seed: int, floor: float, class_floor: float, boost: float, balance: float
) -> None:
    generator = np.random.default_rng(seed)
    given_ = generator.integers(0, 4, 60)
    suggested = (given_ + generator.integers(1, 4, 60)) % 4
    limits = generator.random(4)
    found = weigh(
        p,
        given_,
        suggested,
        limits,
        CurriculumSettings(floor=floor, class_floor=class_floor, boost=boost, balance=balance),
    )
    assert found.weights.mean() == pytest.approx(1, abs=1e-12)
    assert (found.weights > 0).all()
    assert (found.taken <= np.minimum(p, 1 - floor) + 1e-12).all()
    sizes = np.bincount(given_, minlength=4)
    lost = np.bincount(given_, weights=found.taken, minlength=4)
    assert (lost <= limits * sizes * (1 + 1e-6) + 1e-9).all()
    totals = np.bincount(given_, weights=found.weights, minlength=4)
    if balance == 0:
        np.testing.assert_allclose(totals, sizes, rtol=1e-6)
    assert (totals >= class_floor * sizes * (1 - 1e-9)).all()


def test_classes_without_examples_are_no_trouble() -> None:
    found = weigh(np.array([0.5, 0.5]), np.array([3, 3]), np.array([1, 1]), np.ones(5), CurriculumSettings(**FREE))
    np.testing.assert_allclose(found.weights, 1)


def test_lowering_keeps_the_order_and_meets_the_total() -> None:
    p = np.array([0.0, 0.2, 0.6, 0.95, 1.0])
    found = lower_odds(p, 1.5)
    assert found.sum() == pytest.approx(1.5, rel=1e-6)
    assert (np.diff(found) >= 0).all()
    assert (found <= p).all()
    assert lower_odds(p, 10.0) is p
    assert not lower_odds(p, 0.0).any()


@pytest.mark.parametrize(
    ("before", "rate", "expected"),
    [(None, 0.2, 0), (0.2, 0.2, 1), (0.1, 0.2, 1), (0.3, 0.2, 0.5), (0.5, 0.2, 0), (0.1, 0.0, 0)],
)
def test_a_falling_rate_is_believed_less(before: float | None, rate: float, expected: float) -> None:
    assert believed_share(before, rate) == pytest.approx(expected)


def test_limits_of_classes() -> None:
    joint, alike = np.array([[0.3, 0.1], [0.0, 0.6]]), np.ones(2)
    many = class_limits(joint, np.array([4000.0, 6000.0]), 0.1, alike)
    error = np.sqrt(0.25 * 0.75 / 4000)
    assert many[0] == pytest.approx(0.25 + error, abs=1e-3)
    assert many[1] == pytest.approx(0.0, abs=0.002)
    none = class_limits(joint, np.zeros(2), 0.1, alike)  # without examples of its own a class is as the whole data set
    np.testing.assert_allclose(none, 0.1 + np.sqrt(0.09 / 10))
    np.testing.assert_allclose(class_limits(None, np.full(2, 1e9), 0.2, alike), 0.2, atol=1e-4)


def test_a_handful_of_examples_does_not_condemn_a_rare_class() -> None:
    """Three of four held-out examples look wrong: the model has not learned the class. By hand, with FEW = 10."""
    joint = np.array([[0.88, 0.08], [0.03, 0.01]])
    held_out, rate = np.array([96.0, 4.0]), 0.09
    found = class_limits(joint, held_out, rate, np.array([960.0, 40.0]))
    share = (4 * 0.75 + 10 * rate) / 14
    error = np.sqrt(share * (1 - share) / 14)
    usual = 40 / 500
    assert found[1] == pytest.approx(usual * (share + error) + (1 - usual) * (share - error))
    assert found[1] < 0.2
    equal = class_limits(joint, held_out, rate, np.array([500.0, 500.0]))
    assert equal[1] == pytest.approx(share + error)
    assert found[0] == equal[0]  # a class of more than the mean size is judged as one of usual size
    sure = class_limits(joint, 1000 * held_out, rate, np.array([960.0, 40.0]))
    assert sure[1] == pytest.approx(0.75, abs=0.01)  # many examples leave no doubt, however rare the class
    few = class_limits(np.array([[0.9, 0.06], [0.0, 0.04]]), held_out, rate, np.array([960.0, 40.0]))
    assert few[1] == pytest.approx(rate, abs=0.01)  # none of four looks wrong: that may be luck


def test_decided_weights_by_hand() -> None:
    # Odds 1/3 and 3 become 1/9 and 9, and by symmetry no factor is needed.
    np.testing.assert_allclose(sharpen(np.array([0.25, 0.75]), 2.0), [0.1, 0.9])
    # Odds 1/4, 1, 1 to the power of two, times f: f/16 / (1 + f/16) + 2 f / (1 + f) = 1.2.
    found = sharpen(np.array([0.2, 0.5, 0.5]), 2.0)
    factor = found[1] / (1 - found[1])
    assert found[0] == pytest.approx(factor / 16 / (1 + factor / 16))
    assert found.sum() == pytest.approx(1.2)


@given(p=hnp.arrays(np.float64, st.integers(1, 50), elements=st.floats(0, 1)), sharpness=st.floats(0.5, 8))
@settings(max_examples=60, deadline=None)
def test_being_decided_keeps_total_and_order(p: Any, sharpness: float) -> None:
    found = sharpen(p, sharpness)
    assert found.sum() == pytest.approx(p.sum(), abs=1e-6)
    assert (np.diff(found[np.argsort(p, kind="stable")]) >= -1e-12).all()
    assert ((found >= 0) & (found <= 1)).all()


def test_the_more_decided_the_less_weight_is_misplaced() -> None:
    """With p the exact posterior, less is taken from right labels and less left to wrong ones."""
    generator = np.random.default_rng(1)
    p = generator.beta(0.5, 0.8, 20_000)
    wrong = generator.random(len(p)) < p
    lost = [float(sharpen(p, sharpness)[~wrong].sum()) for sharpness in (1.0, 1.5, 3.0, 50.0)]
    left = [float((1 - sharpen(p, sharpness))[wrong].sum()) for sharpness in (1.0, 1.5, 3.0, 50.0)]
    assert lost == sorted(lost, reverse=True)
    assert left == sorted(left, reverse=True)
    assert sharpen(p, 1.0) is p
    assert not sharpen(np.zeros(4), 2.0).any()
