"""Limits by class: on made-up examples of which some classes look alike to the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from sgoif.tasks.labels.calibration import selected_at
from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.confused import (
    KNOWN,
    LEAST_STRICT,
    Limits,
    class_limits,
    class_rates,
    confusable,
    falling,
    surely_falls,
)

CLASSES, COUNT, DECOYS, RATE = 10, 8000, 400, 0.06
ALIKE = 2
"""The last so many classes look alike: each is often taken for the one before."""


class Run:
    """What a model says about images with some wrong labels, and the truth."""

    def __init__(self, alike: int, decoys: int = DECOYS, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        true = random.integers(CLASSES, size=COUNT)
        self.wrong = random.random(COUNT) < RATE
        self.given: Labels = np.where(self.wrong, (true + random.integers(1, CLASSES, size=COUNT)) % CLASSES, true)
        self.planted = np.arange(COUNT) < decoys
        self.given[:decoys] = (self.given[:decoys] + random.integers(1, CLASSES, size=decoys)) % CLASSES
        rows = np.arange(COUNT)
        logits = random.normal(size=(COUNT, CLASSES))
        logits[rows, true] += 6.0
        self.mistaken = (true >= CLASSES - alike) & (random.random(COUNT) < 0.8)
        logits[rows, true - 1] += np.where(self.mistaken, 6.0 + random.normal(size=COUNT), 0.0)
        p = np.exp(logits)
        self.p: Array = p / p.sum(1, keepdims=True)
        other = self.p.copy()
        other[rows, self.given] = 0
        self.v: Array = other.max(1) - self.p[rows, self.given]
        agreed = self.p.argmax(1) == self.given
        self.count = np.bincount(self.given, minlength=CLASSES)
        self.agreed = np.bincount(self.given, weights=agreed, minlength=CLASSES) / self.count

    def limits(self, weight: float = 1.0, rate: float = RATE) -> Limits | None:
        held_out = (self.count, self.agreed)
        return class_limits(self.p, self.given, self.planted, self.v, held_out, rate, weight)


def test_labels_of_classes_that_look_alike_are_limited_and_others_are_not() -> None:
    run = Run(ALIKE)
    limits = run.limits()
    assert limits is not None
    own = ~run.planted
    most = limits.of(run.given, run.v)
    alike = run.given >= CLASSES - ALIKE - 1
    assert most[own & run.wrong & ~alike].mean() > 0.9
    assert most[own & run.mistaken & ~run.wrong].mean() < 0.5
    suspicious = own & (run.v > 0)
    before = 1 - run.wrong[suspicious].mean()
    chosen = np.flatnonzero(suspicious)[selected_at(most[suspicious], 0.1)]
    assert before > 0.4
    assert 1 - run.wrong[chosen].mean() < before / 2
    assert run.wrong[chosen].sum() > 0.5 * run.wrong[own].sum()


def test_a_model_that_tells_its_classes_apart_has_no_limits() -> None:
    assert all(Run(0, seed=seed).limits() is None for seed in range(5))


def test_few_decoys_set_no_limits() -> None:
    assert Run(ALIKE, decoys=LEAST_STRICT).limits() is None


def test_a_class_with_most_of_whose_right_labels_the_model_disagrees_is_not_known() -> None:
    run = Run(ALIKE)
    run.agreed = np.where(np.arange(CLASSES) == 4, 0.3, 0.9)
    limits = run.limits()
    assert limits is not None
    assert limits.unknown.tolist() == [4]
    assert max(limits.most[4]) == KNOWN
    run.count = np.full(CLASSES, 5)
    few = run.limits()
    assert few is not None
    assert not len(few.unknown)


def test_the_weight_says_how_far_limits_count() -> None:
    run = Run(ALIKE)
    full, half = run.limits(), run.limits(weight=0.5)
    assert full is not None
    assert half is not None
    for whole, part in zip(full.most, half.most, strict=True):
        assert np.allclose(part, np.sqrt(whole))


def test_a_limit_never_falls_towards_the_top_of_its_class() -> None:
    limits = Run(ALIKE).limits()
    assert limits is not None
    v = np.linspace(-2, 2, 500)
    for y in range(CLASSES):
        assert (np.diff(limits.of(np.full(len(v), y), v)) >= 0).all()


def marked(own: int, decoys: int) -> np.ndarray[Any, Any]:
    """So many of a thousand examples and of a hundred decoys."""
    return np.concatenate([np.arange(1000) < own, np.arange(100) < decoys])


@pytest.mark.parametrize(
    ("loose", "strict", "expected"),
    [
        ((200, 80), (100, 40), False),
        ((200, 80), (50, 40), True),
        ((200, 80), (90, 40), False),
        ((9, 80), (0, 40), True),
    ],
)
def test_names_fall_where_fewer_are_left_than_of_decoys(
    loose: tuple[int, int], strict: tuple[int, int], expected: bool
) -> None:
    planted = np.arange(1100) >= 1000
    assert surely_falls(marked(*loose), marked(*strict), planted) is expected


def test_without_any_name_nothing_falls() -> None:
    planted = np.arange(1100) >= 1000
    assert not surely_falls(marked(0, 80), marked(0, 40), planted)
    assert not surely_falls(marked(10, 80), marked(5, 0), planted)


def test_rates_of_classes_are_those_of_their_names_and_a_small_class_leans_on_the_others() -> None:
    expected = np.array([1e4, 1e4, 1e4, 1e4, 1.0])
    rates = class_rates(np.array([500.0, 1000.0, 2000.0, 500.0, 0.0]), expected, 10**9)
    mean = 4000 / expected.sum()
    right = np.array([0.05, 0.1, 0.2, 0.05]) / (1 + mean / 4)
    assert rates[:4] == pytest.approx(right, rel=0.06)
    assert rates[4] > 0.8 * mean


def test_classes_that_differ_no_more_than_by_chance_have_one_rate() -> None:
    rates = class_rates(np.array([9.0, 11.0, 10.0]), np.full(3, 100.0), 10**9)
    assert rates == pytest.approx(np.full(3, 0.1 / 1.05), rel=0.01)


@pytest.mark.parametrize(
    ("competence", "trust", "looks", "expected"),
    [(0.8, 1, 0, 1), (0.88, 1, 0, 0.5), (0.95, 1, 0, 0), (0.8, 0.5, 0, 0.5), (0.8, 1, 0.8, 0), (0.8, 1, 0.4, 1)],
)
def test_limits_count_where_a_model_may_take_classes_for_others(
    competence: float, trust: float, looks: float, expected: float
) -> None:
    assert confusable(competence, trust, looks) == pytest.approx(expected)


@drawn(st.lists(st.floats(-5, 5), min_size=1, max_size=12))
def test_falling_is_the_isotonic_fit(values: list[float]) -> None:
    y = np.array(values)
    count = len(y)
    slow = [min(max(y[a : b + 1].mean() for b in range(i, count)) for a in range(i + 1)) for i in range(count)]
    assert falling(y) == pytest.approx(np.array(slow), abs=1e-9)
