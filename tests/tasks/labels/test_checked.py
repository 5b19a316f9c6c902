"""A few checked labels: where most labels of a class are wrong, they decide which class is which."""

from __future__ import annotations

import numpy as np
import pytest
from test_label_errors import Problem, blobs, precision, trained

from sgoif.errors import SettingError
from sgoif.tasks import LabelErrors
from sgoif.tasks.deviations import standard
from sgoif.tasks.labels.channel import Array
from sgoif.tasks.labels.checked import checked_joint, trust
from sgoif.tasks.labels.evidence import Evidence, Rows
from sgoif.tasks.labels.ranking import Weights, logit, suspicion, wrong_by_joint

CLASSES = 4
SWAPPED = np.array([[0.2, 0.7, 0.05, 0.05], [0.7, 0.2, 0.05, 0.05], [0, 0, 0.9, 0.1], [0, 0, 0.1, 0.9]])
"""P(given | true), a row per true class: most examples of classes 0 and 1 are called by the other's name."""


def misnamed(count: int = 1500) -> Problem:
    """Blobs whose first two classes mostly carry each other's name."""
    problem = blobs(count, CLASSES, rate=0.0)
    generator = np.random.default_rng(0)
    given = np.array([generator.choice(CLASSES, p=SWAPPED[label]) for label in problem.true])
    return Problem(problem.x, problem.true, given)


def held_out(truth: Array, count: int = 4000, seed: int = 0) -> tuple[Evidence, np.ndarray]:
    """Held-out examples whose probabilities are what a good model makes of this channel, and their true labels."""
    generator = np.random.default_rng(seed)
    true = generator.integers(0, len(truth), count)
    p = np.clip(truth[true] + 0.02 * generator.standard_normal((count, len(truth))), 1e-3, None)
    p /= p.sum(1, keepdims=True)
    given = np.array([generator.choice(len(truth), p=truth[label]) for label in true])
    zero = np.zeros(count)
    found = Evidence(np.arange(count), given, zero, zero, zero, zero, groups=Rows(p), classes=Rows(p))
    return found, true


def test_two_checked_labels_a_class_name_every_class() -> None:
    anchors, true = held_out(SWAPPED)
    rows = np.concatenate([np.flatnonzero(true == label)[:2] for label in range(CLASSES)])
    unchecked = np.diag(np.full(CLASSES, 1 / CLASSES))
    joint = checked_joint(anchors, unchecked, rows, true[rows])
    np.testing.assert_allclose(joint / joint.sum(0), SWAPPED.T, atol=0.03)


def test_a_class_nobody_checked_keeps_its_unchecked_estimate() -> None:
    channel = np.array([[0.8, 0.1, 0.05, 0.05], [0.1, 0.8, 0.05, 0.05], [0, 0.1, 0.8, 0.1], [0.1, 0, 0.1, 0.8]])
    anchors, true = held_out(channel)
    rows = np.flatnonzero(true == 0)[:3]
    joint = checked_joint(anchors, (channel / CLASSES).T, rows, true[rows])
    np.testing.assert_allclose(joint / joint.sum(0), channel.T, atol=0.05)


def test_trust_is_whole_where_names_agree_and_none_where_they_do_not() -> None:
    anchors, _ = held_out(SWAPPED)
    right = (SWAPPED / CLASSES).T
    assert trust(anchors, right, right) == 1
    cycled = right[:, [1, 2, 3, 0]]
    assert trust(anchors, right, cycled) == 0


def test_without_trust_only_the_channel_counts() -> None:
    anchors, _ = held_out(SWAPPED)
    joint, whole = (SWAPPED / CLASSES).T, Weights(structured=0.5, influence=1.5, logits=0.3)
    assert whole.believing(1.0) == whole
    wrong = wrong_by_joint(anchors, joint)
    assert wrong is not None
    v = suspicion(anchors, wrong, whole.believing(0.0))
    np.testing.assert_allclose(v, standard(logit(wrong)))


@pytest.fixture(scope="module")
def astray() -> tuple[Problem, LabelErrors]:
    problem = misnamed()
    return problem, LabelErrors(trained(problem, CLASSES))


def test_checked_labels_turn_a_ranking_that_went_astray(astray: tuple[Problem, LabelErrors]) -> None:
    problem, errors = astray
    chosen = errors.to_check(20)
    checked = {int(i): int(problem.true[i]) for i in chosen}
    named = LabelErrors(errors.monitor, checked=checked)
    assert precision(named, problem) > 0.9 > 0.7 > precision(errors, problem)
    table = named.table()
    found = table["is_label_issue"]
    assert problem.wrong[table["index"][found]].mean() > 0.8


def test_checked_labels_change_nothing_where_names_are_right() -> None:
    problem = blobs(CLASSES * 300, CLASSES, rate=0.2)
    monitor = trained(problem, CLASSES)
    errors = LabelErrors(monitor)
    checked = LabelErrors(monitor, checked={int(i): int(problem.true[i]) for i in errors.to_check()})
    np.testing.assert_array_equal(errors.table()["probability_wrong"], checked.table()["probability_wrong"])


def test_examples_to_check_are_held_out_and_repeat(astray: tuple[Problem, LabelErrors]) -> None:
    _, errors = astray
    chosen = errors.to_check()
    assert len(chosen) == 4 * CLASSES == len(set(chosen.tolist()))
    assert np.isin(chosen, errors.judgement.anchors.index).all()
    assert np.array_equal(chosen, errors.to_check())
    assert not np.array_equal(chosen, errors.to_check(seed=1))
    assert len(errors.to_check(10**6)) == len(errors.judgement.anchors)


def test_mistakes_in_checked_labels_are_named(astray: tuple[Problem, LabelErrors]) -> None:
    problem, errors = astray
    trained_on = int(np.setdiff1d(np.arange(len(problem.true)), errors.judgement.anchors.index)[0])
    with pytest.raises(SettingError, match=f"example {trained_on}, which is not a scored held-out"):
        LabelErrors(errors.monitor, checked={trained_on: 0})
    with pytest.raises(SettingError, match="there are 4 classes"):
        LabelErrors(errors.monitor, checked={int(errors.to_check()[0]): 4})
