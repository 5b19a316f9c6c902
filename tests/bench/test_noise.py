"""Label noise: the asked-for number of wrong labels, in the asked-for places."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.bench.noise import (
    CIFAR10_CLASSES,
    CIFAR10_FLIPS,
    DIGIT_FLIPS,
    by_matrix,
    class_dependent,
    next_class,
    symmetric,
)
from sgoif.errors import SettingError

LABELS = np.repeat(np.arange(10), 100)


@given(st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_symmetric_changes_the_asked_for_number_and_never_to_the_same_class(rate: float, seed: int) -> None:
    noisy, is_wrong = symmetric(LABELS, 10, rate, seed)
    assert is_wrong.sum() == round(rate * len(LABELS))
    assert np.array_equal(noisy != LABELS, is_wrong)
    assert noisy.min() >= 0
    assert noisy.max() < 10


def test_symmetric_spreads_over_all_other_classes() -> None:
    labels = np.zeros(20_000, dtype=np.int64)
    noisy, _ = symmetric(labels, 5, 1.0, seed=1)
    share = np.bincount(noisy, minlength=5) / len(noisy)
    assert share[0] == 0
    assert share[1:] == pytest.approx([0.25] * 4, abs=0.02)


def test_cifar_mapping_by_name() -> None:
    named = {CIFAR10_CLASSES[true]: CIFAR10_CLASSES[given] for true, given in CIFAR10_FLIPS.items()}
    assert named == {"truck": "automobile", "bird": "airplane", "deer": "horse", "cat": "dog", "dog": "cat"}


@pytest.mark.parametrize("mapping", [CIFAR10_FLIPS, DIGIT_FLIPS, next_class(10)])
def test_overall_is_a_share_of_all_labels(mapping: Mapping[int, int]) -> None:
    noisy, is_wrong = class_dependent(LABELS, mapping, overall=0.2, seed=3)
    assert is_wrong.mean() == pytest.approx(0.2)
    assert set(LABELS[is_wrong]) == set(mapping)
    assert all(mapping[true] == given for true, given in zip(LABELS[is_wrong], noisy[is_wrong], strict=True))


def test_rate_is_a_share_of_the_mapped_classes() -> None:
    _, is_wrong = class_dependent(LABELS, CIFAR10_FLIPS, 0.4, 0)
    assert is_wrong.sum() == 200


def test_same_seed_same_noise_and_the_input_is_left_alone() -> None:
    before = LABELS.copy()
    first, second, third = (class_dependent(LABELS, next_class(10), overall=0.2, seed=s) for s in (5, 5, 6))
    assert np.array_equal(first.labels, second.labels)
    assert not np.array_equal(first.labels, third.labels)
    assert np.array_equal(before, LABELS)


@given(st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_a_matrix_is_followed_to_the_nearest_example(classes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix = random.dirichlet(np.full(classes, 0.5), classes).T
    labels = random.integers(classes, size=300)
    noisy, is_wrong = by_matrix(labels, matrix, seed)
    assert np.array_equal(noisy != labels, is_wrong)
    for true in range(classes):
        members = labels == true
        counts = np.bincount(noisy[members], minlength=classes)
        assert counts.sum() == members.sum()
        assert np.abs(counts - matrix[:, true] * members.sum()).max() <= 1 + 1e-6


def test_columns_of_a_matrix_are_true_classes() -> None:
    matrix = np.eye(10)
    matrix[[3, 5], 3] = 0.6, 0.4  # four cats in ten are called dogs; no dog is called a cat
    noisy, is_wrong = by_matrix(LABELS, matrix, seed=2)
    assert is_wrong.sum() == 40
    assert set(LABELS[is_wrong]) == {3}
    assert set(noisy[is_wrong]) == {5}
    assert np.array_equal(by_matrix(LABELS, matrix, seed=2).labels, noisy)
    assert not np.array_equal(by_matrix(LABELS, matrix, seed=3).labels, noisy)
    assert not by_matrix(LABELS, np.eye(10)).is_wrong.any()


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.eye(9), "go up to 9"),
        (np.ones((10, 9)) / 10, "shape"),
        ([], "shape"),
        (np.eye(10) * 0.9, "sum to one"),
        (2 * np.eye(10) - 0.1, "sum to one"),
        (np.full((10, 10), np.nan), "sum to one"),
        (np.tile([[1.5], [-0.5], *[[0.0]] * 8], (1, 10)), "sum to one"),
    ],
)
def test_what_is_not_a_noise_matrix_is_refused(matrix: object, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        by_matrix(LABELS, matrix)  # type: ignore[arg-type]


def test_mistakes_are_named() -> None:
    with pytest.raises(SettingError, match="either rate"):
        class_dependent(LABELS, CIFAR10_FLIPS)
    with pytest.raises(SettingError, match="either rate"):
        class_dependent(LABELS, CIFAR10_FLIPS, 0.1, overall=0.2)
    with pytest.raises(SettingError, match="only 500 examples"):
        class_dependent(LABELS, CIFAR10_FLIPS, overall=0.6)
    with pytest.raises(SettingError, match="to itself"):
        class_dependent(LABELS, {1: 1}, 0.5)
    with pytest.raises(SettingError, match=r"\[0, 1\]"):
        symmetric(LABELS, 10, 1.5)
    with pytest.raises(SettingError, match="does not fit"):
        symmetric(LABELS, 5, 0.5)
    with pytest.raises(SettingError, match="class numbers"):
        symmetric(LABELS / 2, 10, 0.5)
