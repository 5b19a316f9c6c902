"""Findings about classes as a whole: counted ones exactly, twins by planting them, and none on clean sets."""

import numpy as np
import pytest
from examined_cases import labelled_set

from sgoif.findings import Severity
from sgoif.findings.kinds.classes import (
    Imbalance,
    SmallClass,
    TwinClasses,
    TwinNames,
    WrongClass,
    folded,
    linear_accuracy,
)

CLASSES = 6


def clouds(rng, count=600, apart=3.0, width=24):
    """Features of images in one cloud for each class."""
    labels = rng.permutation(np.arange(count) % CLASSES)
    centres = apart * rng.normal(size=(CLASSES, width)) / np.sqrt(width) * 4
    return (centres[labels] + rng.normal(size=(count, width))).astype(np.float16), labels


def test_small_classes_come_with_their_images():
    seen = labelled_set([0] * 20 + [1] * 4 + [2] * 5 + [3], ["a", "b", "c", "d"])
    found = SmallClass().find(seen)
    assert [(finding.classes, len(finding.images)) for finding in found] == [(("d",), 1), (("b",), 4)]
    assert found[1].images == tuple(seen.names[20:24])


@pytest.mark.parametrize(
    ("sizes", "severity"),
    [
        ((50, 50), None),
        ((90, 10, 30), None),
        ((100, 10, 80), "note"),
        ((91, 10), "warning"),
        ((5, 0), None),
        ((), None),
    ],
)
def test_imbalance_is_said_from_ten_to_one_on(sizes, severity):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    found = Imbalance().find(labelled_set(labels, [f"c{n}" for n in range(len(sizes))]))
    assert [finding.severity for finding in found] == ([severity] if severity else [])


def test_imbalance_says_how_many_equal_classes_vary_as_much():
    evidence = Imbalance().find(labelled_set([0] * 100 + [1] * 100 + [2] * 1))[0].evidence
    assert 2 < evidence["classes of equal size that vary as much"] < 2.1
    assert evidence["ratio"] == 100


@pytest.mark.parametrize(
    ("one", "two"),
    [("Cat", "cat "), ("polar_bear", "polar-bears"), ("boxes", "box"), ("berry", "berries"), ("7", "007"), ("é", "é")],
)
def test_names_of_one_class(one, two):
    seen = labelled_set([0, 1, 2, 0], [one, two, "other"])
    (finding,) = TwinNames().find(seen)
    assert finding.classes == (one, two)


@pytest.mark.parametrize(
    ("one", "two"),
    [("C", "Cs"), ("glass", "glas"), ("10", "1"), ("1 0", "10"), ("a+", "b+"), ("+", "-"), ("bus", "bu")],
)
def test_names_of_two_classes(one, two):
    assert folded(one) != folded(two)
    assert TwinNames().find(labelled_set([0, 1], [one, two])) == []


def test_a_class_split_at_random_is_found_and_nothing_else():
    rng = np.random.default_rng(0)
    features, labels = clouds(rng)
    labels = np.where((labels == 2) & (rng.random(600) < 0.5), CLASSES, labels)
    (finding,) = TwinClasses().find(labelled_set(labels, features=features))
    assert set(finding.classes) == {"class 2", f"class {CLASSES}"}
    assert finding.severity is Severity.WARNING
    assert 0.3 < finding.evidence["accuracy"] < finding.evidence["upper bound"] < 0.75


def test_clean_classes_are_told_apart():
    for rng in np.random.default_rng(1).spawn(5):
        features, labels = clouds(rng)
        assert TwinClasses().find(labelled_set(labels, features=features)) == []


def test_where_nothing_is_told_apart_it_is_a_note():
    rng = np.random.default_rng(2)
    seen = labelled_set(np.arange(600) % 3, features=rng.normal(size=(600, 8)))
    assert {finding.severity for finding in TwinClasses().find(seen)} == {Severity.NOTE}


def test_linear_accuracy_is_that_of_the_best_line():
    rng = np.random.default_rng(3)
    second = np.arange(4000) % 2 == 1
    features = rng.normal(size=(4000, 5)) + np.outer(second, [2, 0, 0, 0, 0])
    assert linear_accuracy(features, second) == pytest.approx(0.841, abs=0.02)  # Φ(1)
    assert linear_accuracy(rng.normal(size=(4000, 5)), second) == pytest.approx(0.5, abs=0.04)


class Judged:
    """What was found about labels: a table, as `LabelFindings` gives it."""

    def __init__(self, given, predicted, issue):
        self._table = {"given_label": given, "predicted_label": predicted, "is_label_issue": issue}

    def table(self):
        return self._table


def test_a_class_most_of_whose_labels_are_wrong():
    given = np.repeat([0, 1, 2], 40)
    issue = np.zeros(120, bool)
    issue[40:70], issue[80:90] = True, True
    found = Judged(given, np.where(issue, (given + 1) % 3, given), issue)
    seen = labelled_set(given, judged=np.arange(120), labels_found=found)
    (finding,) = WrongClass().find(seen)
    assert finding.classes == ("class 1", "class 2")
    assert finding.images == tuple(seen.names[40:70])
    assert finding.evidence["share"] == 0.75
