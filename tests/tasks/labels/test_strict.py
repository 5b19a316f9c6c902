"""Strict names: what held-out labels say about the noise rate, whatever mistakes the model makes itself."""

from __future__ import annotations

import numpy as np
import pytest

from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.confused import STRICT
from sgoif.tasks.labels.evidence import Evidence, Rows
from sgoif.tasks.labels.judgement import judge
from sgoif.tasks.labels.strict import _loosest, by_strict_names

CLASSES = 10


def seen(count: int, wrong: float, mistaken: float, seed: int = 0, first: int = 0) -> Evidence:
    """What a model says that takes some images for another class, never surely, and knows the others."""
    random = np.random.default_rng(seed)
    rows, true = np.arange(count), random.integers(CLASSES, size=count)
    flipped = random.random(count) < wrong
    given: Labels = np.where(flipped, (true + random.integers(1, CLASSES, size=count)) % CLASSES, true)
    logits = random.normal(size=(count, CLASSES))
    doubtful = random.random(count) < mistaken
    logits[rows, true] += np.where(doubtful, 1.0, 6.0)
    logits[rows, (true + 1) % CLASSES] += np.where(doubtful, 2.5, 0.0)
    p: Array = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    other = p.copy()
    other[rows, given] = 0
    margin = p[rows, given] - other.max(1)
    loss = -np.log(p[rows, given])
    return Evidence(first + rows, given, -margin, margin, -loss, loss, Rows(p), Rows(p))


@pytest.mark.parametrize("mistaken", [0.0, 0.15])
@pytest.mark.parametrize("wrong", [0.05, 0.2, 0.4])
def test_the_rate_is_that_of_wrong_labels_and_not_of_mistakes(wrong: float, mistaken: float) -> None:
    found = by_strict_names(seen(4000, wrong, mistaken), CLASSES)
    assert found.low <= found.estimate <= found.high
    assert found.estimate == pytest.approx(wrong, abs=0.03 + 0.1 * wrong)


@pytest.mark.parametrize("mistaken", [0.0, 0.15])
def test_right_labels_leave_no_rate_that_is_sure(mistaken: float) -> None:
    assert by_strict_names(seen(4000, 0.0, mistaken), CLASSES).low < 0.005


def test_the_loosest_level_is_taken_that_stricter_ones_confirm() -> None:
    expected = [1000.0, 800.0, 600.0, 400.0, 200.0]
    assert _loosest([(0.1 * d, d) for d in expected]) == 0
    mistakes = [300.0, 60.0, 0.0, 0.0, 0.0]
    assert _loosest([(0.1 * d + m, d) for d, m in zip(expected, mistakes, strict=True)]) == 2
    assert _loosest([(0.1 * d + d**2, d) for d in expected]) == len(STRICT) - 1


def test_a_class_that_nobody_was_given_and_one_that_is_all_there_is() -> None:
    some = seen(400, 0.1, 0.0)
    lacking = some.take(np.flatnonzero(some.given != 3))
    assert 0 <= by_strict_names(lacking, CLASSES).low <= by_strict_names(lacking, CLASSES).high <= 1
    alone = by_strict_names(some.take(np.flatnonzero(some.given == 3)), CLASSES)
    assert 0 <= alone.low <= alone.high <= 1


def test_without_decoys_mistakes_alone_fill_no_list() -> None:
    training, held_out = seen(8000, 0.0, 0.2), seen(2000, 0.0, 0.2, seed=1, first=8000)
    listed = {}
    for strict in (True, False):
        verdict = judge(training, held_out, CLASSES, strict=strict)
        listed[strict] = len(verdict.calibration.selected(verdict.probability, 0.1))
    assert listed[True] < 0.1 * listed[False]
    assert listed[False] > 50
    assert judge(training, held_out, CLASSES).calibration.rate.low == 0


def test_without_decoys_wrong_labels_are_listed_as_before() -> None:
    training, held_out = seen(8000, 0.1, 0.05), seen(2000, 0.1, 0.05, seed=1, first=8000)
    now, before = (judge(training, held_out, CLASSES, strict=strict) for strict in (True, False))
    assert np.array_equal(now.probability, before.probability)
    assert len(now.calibration.selected(now.probability, 0.1)) > 500
