"""How structured the noise looks to a curriculum."""

from __future__ import annotations

import numpy as np
import pytest

from sgoif.tasks.labels.evidence import Evidence, Rows
from sgoif.tasks.labels.structure import structure_of, structure_of_pairs

CLASSES, COUNT = 10, 1200


def seen(paired: bool, share: float = 0.4) -> Evidence:
    """Answers that know the true class; labels are wrong at random, or those of the next class."""
    random = np.random.default_rng(0)
    true = random.integers(CLASSES, size=COUNT)
    step = np.ones(COUNT, dtype=np.int64) if paired else random.integers(1, CLASSES, COUNT)
    given = np.where(random.random(COUNT) < share, (true + step) % CLASSES, true)
    answers = random.dirichlet(np.ones(CLASSES), COUNT) * 0.3
    answers[np.arange(COUNT), true] += 0.7
    rest = answers.copy()
    rest[np.arange(COUNT), given] = 0
    margin = answers[np.arange(COUNT), given] - rest.max(1)
    nothing = np.zeros(COUNT)
    return Evidence(np.arange(COUNT), given, nothing, margin, margin, nothing, Rows(answers), Rows(answers))


@pytest.mark.parametrize(("paired", "low", "high"), [(False, 0.0, 0.15), (True, 0.9, 1.0)])
def test_structure_is_that_of_the_most_suspicious(paired: bool, low: float, high: float) -> None:
    assert low <= structure_of(seen(paired), CLASSES) <= high


def test_right_labels_say_nothing_about_it() -> None:
    """Few labels are wrong, all by the name of the next class; the right ones, confused at random, do not hide it."""
    assert structure_of(seen(paired=True, share=0.1), CLASSES) > 0.7


@pytest.mark.parametrize(("classes", "count"), [(4, 60), (10, 400), (100, 200), (100, 4000), (5000, 3000)])
def test_labels_wrong_at_random_have_no_structure_however_few_there_are(classes: int, count: int) -> None:
    random = np.random.default_rng(classes)
    given = random.integers(0, classes, count)
    rival = (given + random.integers(1, classes, count)) % classes
    assert structure_of_pairs(given, rival, classes) < 0.06


def test_a_model_that_says_one_and_the_same_has_found_no_structure() -> None:
    """Whatever the label, it says one of two classes: that is the model's habit, and no rule of the labels."""
    random = np.random.default_rng(0)
    given = random.integers(0, 10, 2000)
    rival = np.where(random.random(2000) < 0.7, 3, 8)
    given, rival = given[given != rival], rival[given != rival]
    assert structure_of_pairs(given, rival, 10) < 0.03


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_structure_grows_with_the_share_of_pairs_that_follow_a_rule(share: float) -> None:
    random = np.random.default_rng(1)
    given = random.integers(0, 20, 20_000)
    rule = random.random(20_000) < share
    rival = np.where(rule, (given + 1) % 20, (given + random.integers(1, 20, 20_000)) % 20)
    p = np.full(19, (1 - share) / 19)
    p[0] += share
    entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
    assert structure_of_pairs(given, rival, 20) == pytest.approx(1 - entropy / np.log(19), abs=0.01)


def test_two_classes_and_no_examples_have_none() -> None:
    assert structure_of_pairs(np.array([0, 1, 0, 1]), np.array([1, 0, 1, 0]), 2) == 0
    assert structure_of_pairs(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 5) == 0
