"""The channel from true to given labels: against slow loops, against cleanlab, and against channels that are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.tasks.labels import channel
from sgoif.tasks.labels.channel import (
    FLATTEST,
    SHARPEST,
    SMALLEST,
    Array,
    Labels,
    confident_joint,
    normalised,
    posterior,
    sharpened,
    sharpness,
)


def random_case(seed: int, count: int = 60, classes: int = 4) -> tuple[Array, Labels]:
    random = np.random.default_rng(seed)
    return random.dirichlet(np.full(classes, 0.5), count), random.integers(classes, size=count)


def noisy_case(seed: int, count: int = 2000, classes: int = 4) -> tuple[Array, Labels, Labels]:
    """Probabilities that know the true label well; a fifth of the labels is moved on by one."""
    random = np.random.default_rng(seed)
    true = random.integers(classes, size=count)
    labels = np.where(random.random(count) < 0.2, (true + 1) % classes, true)
    p = random.dirichlet(np.full(classes, 0.3), count) * 0.3 + 0.7 * np.eye(classes)[true]
    return p, labels, true


def slow_counts(p: Array, labels: Labels) -> Array:
    """The definition, example by example: the likeliest of the classes that reach their own mean."""
    classes = p.shape[1]
    means = [np.mean([p[i, j] for i in range(len(p)) if labels[i] == j] or [np.inf]) for j in range(classes)]
    counts = np.zeros((classes, classes))
    for i, label in enumerate(labels):
        reached = [j for j in range(classes) if p[i, j] >= means[j]]
        if reached:
            counts[label, max(reached, key=lambda j: p[i, j])] += 1
    return counts


def slow_joint(p: Array, labels: Labels) -> Array:
    counts = slow_counts(p, labels)
    joint = np.zeros_like(counts)
    for i, row in enumerate(counts):
        row = row if row.sum() else np.eye(len(counts))[i]
        joint[i] = row / row.sum() * (labels == i).sum()
    return joint / joint.sum()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(5, 60), st.integers(2, 6))
def test_the_confident_joint_is_its_definition(seed: int, count: int, classes: int) -> None:
    p, labels = random_case(seed, count, classes)
    np.testing.assert_allclose(confident_joint(p, labels), slow_joint(p, labels), rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(5, 60), st.integers(2, 6))
def test_a_joint_keeps_the_share_of_every_given_label(seed: int, count: int, classes: int) -> None:
    p, labels = random_case(seed, count, classes)
    joint = confident_joint(p, labels)
    assert joint.min() >= 0
    np.testing.assert_allclose(joint.sum(1), np.bincount(labels, minlength=classes) / count, atol=1e-12)
    assert (joint >= 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_confident_joint_is_cleanlabs(seed: int) -> None:
    count = pytest.importorskip("cleanlab.count")
    p, labels, _ = noisy_case(seed)
    counts = count.compute_confident_joint(labels, p, calibrate=False)
    assert counts.diagonal().min() > 1, "cleanlab raises empty diagonals, where definitions differ"
    scaled = counts / counts.sum(1, keepdims=True) * np.bincount(labels)[:, None]
    np.testing.assert_allclose(confident_joint(p, labels), scaled / scaled.sum(), atol=1e-9)


def test_the_joint_finds_the_noise_and_where_it_goes() -> None:
    p, labels, true = noisy_case(7)
    joint = confident_joint(p, labels)
    assert 1 - np.trace(joint) == pytest.approx((labels != true).mean(), abs=0.02)
    real = np.zeros((4, 4))
    np.add.at(real, (labels, true), 1 / len(labels))
    np.testing.assert_allclose(joint, real, atol=0.02)


def test_classes_without_examples_or_without_confidence_are_taken_at_their_word() -> None:
    p = np.array([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.9, 0.1, 0.0]])
    labels = np.array([0, 0, 1])
    joint = confident_joint(p, labels)
    assert np.isfinite(joint).all()
    assert joint[2].sum() == 0
    assert joint.sum() == pytest.approx(1)
    nobody = confident_joint(np.array([[0.6, 0.4], [0.2, 0.8]]), np.array([0, 0]))
    assert nobody[0, 0] == pytest.approx(1)


# --- temperature ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.5])
def test_sharpness_recovers_a_known_temperature(exponent: float) -> None:
    random = np.random.default_rng(3)
    p = random.dirichlet(np.full(5, 2.0), 20_000)  # far from the least probability, so that nothing is clipped
    labels = (p.cumsum(1) > random.random((len(p), 1))).argmax(1)
    blurred = p ** (1 / exponent)
    blurred /= blurred.sum(1, keepdims=True)
    found = sharpness(blurred, labels)
    assert found == pytest.approx(exponent, rel=0.05)
    np.testing.assert_allclose(sharpened(blurred, exponent), p, rtol=0.05, atol=6e-3)  # the least ones are clipped


def test_sharpness_is_the_best_of_a_grid_and_stays_in_its_range() -> None:
    p, labels, true = noisy_case(1, 500)

    def loss(exponent: float) -> float:
        return float(-np.log(sharpened(p, exponent)[np.arange(len(p)), labels]).mean())

    assert loss(sharpness(p, labels)) <= min(loss(e) for e in np.geomspace(FLATTEST, SHARPEST, 200)) + 1e-9
    assert sharpness(p, true) == pytest.approx(SHARPEST, rel=1e-3)
    assert sharpness(p, (true + 2) % 4) == pytest.approx(FLATTEST, rel=1e-3)


@given(st.integers(0, 2**32 - 1), st.floats(FLATTEST, SHARPEST))
@settings(deadline=None, max_examples=40)
def test_probabilities_stay_probabilities(seed: int, exponent: float) -> None:
    p, _ = random_case(seed, 20, 5)
    p[0] = 0
    for found in (normalised(p), sharpened(p, exponent)):
        assert found.min() > 0
        np.testing.assert_allclose(found.sum(1), 1)
    order = np.argsort(np.clip(p, SMALLEST, None), axis=1, kind="stable")
    assert (np.diff(np.take_along_axis(sharpened(p, exponent), order, 1), axis=1) >= -1e-12).all()


# --- beliefs ----------------------------------------------------------------------------------------------------------

CHANNEL = np.array([[0.8, 0.2, 0.0], [0.1, 0.9, 0.0], [0.05, 0.25, 0.7]])
PRIOR = np.array([0.3, 0.4, 0.3])
JOINT = (PRIOR[:, None] * CHANNEL).T


def bayes(q: Array, labels: Labels) -> Array:
    belief = q * CHANNEL[:, labels].T
    return belief / belief.sum(1, keepdims=True)


def test_beliefs_about_examples_of_one_certain_class() -> None:
    q = np.repeat(np.eye(3), 3, axis=0)
    labels = np.tile(np.arange(3), 3)
    possible = CHANNEL[np.repeat(np.arange(3), 3), labels] > 0
    found = posterior(q @ CHANNEL, labels, JOINT)
    np.testing.assert_allclose(found[possible], bayes(q[possible], labels[possible]), atol=0.06)


def test_beliefs_about_mixed_examples() -> None:
    random = np.random.default_rng(5)
    q = random.dirichlet(np.full(3, 3.0), 400)
    p = q @ CHANNEL
    labels = (p.cumsum(1) > random.random((400, 1))).argmax(1)
    found = posterior(p, labels, JOINT)
    np.testing.assert_allclose(found, bayes(q, labels), atol=0.04)
    # The belief is better than taking p for q, which is what a model without a channel would do.
    naive = bayes(p, labels)
    assert np.abs(found - bayes(q, labels)).mean() < 0.2 * np.abs(naive - bayes(q, labels)).mean()


def test_more_steps_come_arbitrarily_close(monkeypatch: pytest.MonkeyPatch) -> None:
    q = np.concatenate([np.random.default_rng(6).dirichlet(np.full(3, 3.0), 100), np.eye(3)])
    labels = (q @ CHANNEL).argmax(1)
    monkeypatch.setattr(channel, "STEPS", 3000)
    np.testing.assert_allclose(posterior(q @ CHANNEL, labels, JOINT), bayes(q, labels), atol=2e-3)


def test_a_channel_without_noise_believes_every_label() -> None:
    p, labels = random_case(8)
    rows = np.arange(len(p))
    joint = np.diag(np.bincount(labels, minlength=4) / len(labels))
    found = posterior(p, labels, joint)
    assert found[rows, labels][p[rows, labels] > 0.01].min() > 0.99


def test_blocks_of_rows_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    p, labels, _ = noisy_case(9, 101)
    joint = confident_joint(p, labels)
    whole = posterior(p, labels, joint)
    np.testing.assert_allclose(whole.sum(1), 1)
    monkeypatch.setattr(channel, "ROWS_AT_ONCE", 29)
    np.testing.assert_array_equal(posterior(p, labels, joint), whole)
