"""Probabilities as if labels were as frequent as the true classes are."""

import numpy as np
import pytest

from sgoif.tasks.labels.balance import balanced, factors, weighed
from sgoif.tasks.labels.channel import Array
from sgoif.tasks.labels.evidence import Evidence, Rows

CLASSES = 3


def believing(p: Array, given: np.ndarray) -> Evidence:  # type: ignore[type-arg]
    """Examples with these probabilities."""
    p = p / p.sum(1, keepdims=True)
    own = p[np.arange(len(p)), given]
    others = p.copy()
    others[np.arange(len(p)), given] = 0
    largest = others.max(1)
    none = np.zeros(len(p))
    rows = Rows(np.zeros((len(p), CLASSES)))
    return Evidence(np.arange(len(p)), given, none, own - largest, np.log(own / largest), none, rows, Rows(p))


def swallowing(count: int, seed: int, share: tuple[float, ...] = (1 / 3, 1 / 3, 1 / 3)) -> tuple[Evidence, np.ndarray]:  # type: ignore[type-arg]
    """Half of the examples of classes 1 and 2 are called 0, and the model believes it nearly."""
    random = np.random.default_rng(seed)
    true = random.choice(CLASSES, count, p=share)
    given = np.where((true > 0) & (random.random(count) < 0.5), 0, true)
    channel = np.array([[1, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]])
    sure = random.uniform(0.8, 1.0, count)[:, None]
    right = sure * np.eye(CLASSES)[true] + (1 - sure) / CLASSES
    return believing(np.clip(right @ channel, 1e-3, 1), given), true != given


def test_factors_give_the_classes_the_share_that_is_asked_for() -> None:
    p = np.random.default_rng(0).dirichlet([5.0, 2.0, 1.0], 400)
    share = np.array([0.2, 0.3, 0.5])
    q = p * factors(p, share)
    assert (q / q.sum(1, keepdims=True)).mean(0) == pytest.approx(share, abs=1e-4)
    assert factors(p, p.mean(0)) == pytest.approx(np.ones(CLASSES))


def test_a_name_that_swallowed_others_no_longer_hides_them() -> None:
    training, wrong = swallowing(3000, 0)
    anchors, _ = swallowing(600, 1)
    assert (training.margin[wrong] < 0).mean() < 0.6
    found, apart = balanced(training, anchors, CLASSES, structure=0.5)
    assert (found.margin[wrong] < 0).mean() > 0.9
    assert (found.margin[~wrong] > 0).mean() > 0.9
    assert apart.agreement() < anchors.agreement()


def test_where_the_noise_has_no_structure_nothing_is_changed() -> None:
    training, anchors = swallowing(900, 0)[0], swallowing(300, 1)[0]
    found, _ = balanced(training, anchors, CLASSES, structure=0.0)
    assert found.margin == pytest.approx(training.margin, abs=1e-9)
    assert found.logit_margin == pytest.approx(training.logit_margin, abs=1e-9)


def test_a_model_that_knows_the_classes_is_believed_about_their_shares() -> None:
    share = (0.7, 0.2, 0.1)
    true = np.random.default_rng(0).choice(CLASSES, 2000, p=share)
    p = 0.97 * np.eye(CLASSES)[true] + 0.01
    some = believing(p, true)
    found, _ = balanced(some, some, CLASSES, structure=1.0)
    assert (found.likeliest[0] == true).all()
    assert found.classes.mean.mean(0) == pytest.approx(share, abs=0.05)


def test_slots_are_weighed_like_whole_rows() -> None:
    p = np.array([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]])
    given, factor = np.array([1, 2]), np.array([0.5, 2.0, 1.0])
    whole = weighed(believing(p, given), factor)
    order = np.argsort(-p, axis=1)
    some = believing(p, given)
    slots = Rows(np.take_along_axis(p, order, 1), order)
    packed = weighed(Evidence(**{**some.__dict__, "classes": slots}), factor)
    assert packed.classes.dense(CLASSES, 0.0) == pytest.approx(whole.classes.mean)
    assert packed.margin == pytest.approx(whole.margin)
    assert whole.margin == pytest.approx([0.6 / 1.0 - 0.3 / 1.0, 0.5 / 1.2 - 0.6 / 1.2])
    assert packed.logit_margin - some.logit_margin == pytest.approx(np.log([2.0 / 0.5, 1.0 / 2.0]))
    empty = Rows(np.array([[0.6, 0.3], [0.5, 0.0]]), np.array([[0, 1], [2, -1]]))
    alone = weighed(Evidence(**{**some.__dict__, "classes": empty}), factor)
    assert alone.classes.dense(CLASSES, 0.0)[1] == pytest.approx([0, 0, 0.5])
    assert alone.margin[1] == pytest.approx(0.5)
    assert np.isfinite(alone.logit_margin).all()
