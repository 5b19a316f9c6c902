"""Off-topic images and outliers: planted ones are found, alone and in groups; clean sets give no more than stated."""

import numpy as np
import pytest
from examined_cases import labelled_set

from sgoif.findings.kinds.off_topic import LIMIT, OffTopic, OutlierInClass, above, distances

WIDTH, CLASSES = 48, 4


def clouds(rng, count=1200, width=WIDTH):
    """Features as networks give them, none below zero, in one cloud for each class."""
    labels = np.arange(count) % CLASSES
    centres = rng.gamma(1.0, size=(CLASSES, width))
    spread = np.exp(0.2 * rng.normal(size=(count, 1)))
    return np.abs(centres[labels] + 0.3 * spread * rng.normal(size=(count, width))).astype(np.float16), labels


def rows_of(findings):
    return {int(finding.images[0].split(".")[0], 16) for finding in findings}


def strange(rng, count):
    """A group of images that are alike, and like no class."""
    centre = np.zeros(WIDTH)
    centre[:5] = 10
    return np.abs(centre + 0.2 * rng.normal(size=(count, WIDTH))).astype(np.float16)


def test_distances_are_those_of_dense_algebra():
    rng = np.random.default_rng(0)
    features, rows, reference = rng.normal(size=(30, 5)), np.array([3, 7, 20]), np.array([1, 3, 5, 20, 28])
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    for rank in (1, 3):
        expected = [np.sort([1 - units[i] @ units[j] for j in reference if j != i])[rank - 1] for i in rows]
        assert distances(features, rows, reference, rank) == pytest.approx(expected, abs=1e-5)


def test_heights_are_standard_deviations_of_log_normal_distances():
    far = np.exp(2 + 0.3 * np.random.default_rng(0).normal(size=200_000))
    assert above(far) == pytest.approx((np.log(far) - 2) / 0.3, abs=0.05)
    assert np.mean(above(far) > LIMIT) == pytest.approx(1 / 2000, rel=0.3)


def test_a_group_of_strange_images_is_off_topic_whatever_their_labels():
    rng = np.random.default_rng(1)
    features, labels = clouds(rng)
    planted = strange(rng, 12)
    for given in (rng.integers(0, CLASSES, 12), np.zeros(12, dtype=int), np.full(12, -1)):
        seen = labelled_set(np.r_[labels, given], features=np.r_[features, planted])
        found = OffTopic().find(seen)
        assert rows_of(found) >= set(range(1200, 1212))
        assert len(found) <= 12 + 2
        assert found[0].evidence["standard deviations"] >= found[-1].evidence["standard deviations"] > LIMIT
        assert found[0].severity == "warning"


def test_a_small_class_of_its_own_kind_is_in_place():
    rng = np.random.default_rng(2)
    features, labels = clouds(rng)
    seen = labelled_set(np.r_[labels, np.full(22, CLASSES)], features=np.r_[features, strange(rng, 22)])
    assert not rows_of(OffTopic().find(seen)) & set(range(1200, 1222))


def test_clean_sets_give_one_false_alarm_in_a_thousand_at_most():
    sets = map(clouds, np.random.default_rng(3).spawn(10))
    alarms = [len(OffTopic().find(labelled_set(labels, features=features))) for features, labels in sets]
    assert sum(alarms) <= 12, alarms


def test_an_image_that_is_in_place_elsewhere_is_an_outlier_in_its_class():
    rng = np.random.default_rng(4)
    features, labels = clouds(rng)
    features = features.astype(float) + 4 * np.eye(CLASSES, WIDTH)[labels]
    labels[[5, 10]] = (labels[[5, 10]] + 1) % CLASSES
    found = OutlierInClass().find(labelled_set(labels, features=features))
    assert rows_of(found) >= {5, 10}
    assert len(found) <= 4
    assert not rows_of(OffTopic().find(labelled_set(labels, features=features))) & {5, 10}
    assert {finding.severity for finding in found} == {"note"}


@pytest.mark.parametrize("count", [0, 1, 30])
def test_too_few_images_are_not_judged(count):
    features = np.random.default_rng(0).normal(size=(count, 4))
    seen = labelled_set(np.zeros(count), ["only"], features=features)
    assert OffTopic().find(seen) == []


def test_copies_of_one_image_are_no_outliers():
    seen = labelled_set(np.zeros(200), features=np.ones((200, 4)))
    assert OffTopic().find(seen) == OutlierInClass().find(seen) == []
