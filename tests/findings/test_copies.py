"""Copies are reported by what has to be done about them: other labels first, then those of one class."""

from __future__ import annotations

import numpy as np
from seen_cases import examined

from sgoif.findings.finding import Severity
from sgoif.findings.kinds.copies import ExactCopies, NearCopies


def test_nothing_where_all_differ() -> None:
    seen = examined(["a.png", "b.png"])
    assert ExactCopies().find(seen) == NearCopies().find(seen) == ExactCopies().find(examined([])) == []


def test_the_same_picture_with_other_labels_is_an_error_and_comes_first() -> None:
    names = ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png", "dog/2.png"]
    same, other = ExactCopies().find(examined(names, [0, 0, 0, 1, 1], content=[1, 1, 3, 4, 3]))
    assert same.severity is Severity.ERROR
    assert (same.images, same.classes, same.keep) == (("dog/0.png", "dog/2.png"), ("cat", "dog"), None)
    assert other.severity is Severity.WARNING
    assert (other.images, other.classes, other.keep) == (("cat/0.png", "cat/1.png"), ("cat",), "cat/0.png")
    assert same.evidence == {"images": 2, "of_the_first_class": 1}


def test_the_class_that_most_copies_have_is_the_one_to_keep() -> None:
    seen = examined(list("abcd"), [1, 0, 0, -1], content=[1] * 4, file_bytes=[9, 1, 2, 8])
    (found,) = ExactCopies().find(seen)
    assert (found.images, found.classes, found.keep) == (("a", "d", "c", "b"), ("cat", "dog"), "c")
    assert "most of them" in found.advice


def test_images_without_a_label_contradict_nobody() -> None:
    (found,) = ExactCopies().find(examined(["a", "b"], [-1, 1], content=[5, 5]))
    assert (found.severity, found.classes) == (Severity.WARNING, ("dog",))


def test_of_near_copies_the_largest_is_kept() -> None:
    seen = examined(
        ["small.jpg", "long name.jpg", "large.jpg", "other.jpg", "light.jpg"],
        width=[10, 20, 20, 20, 20],
        file_bytes=[900, 500, 500, 800, 100],
        near_copies=[(0, 1, 2, 4)],
        hash=[0b1, 0b1, 0b1, 0, 0b1110],
    )
    (found,) = NearCopies().find(seen)
    assert found.images == ("large.jpg", "long name.jpg", "light.jpg", "small.jpg")
    assert (found.keep, found.severity) == ("large.jpg", Severity.NOTE)
    assert found.evidence == {"images": 4, "hash_bits_apart": 4}
    contradiction = examined(["a", "b"], [0, 1], near_copies=[(0, 1)])
    assert [found.severity for found in NearCopies().find(contradiction)] == [Severity.WARNING]


def test_copies_in_different_splits_are_left_to_leaks() -> None:
    names, splits = ["train/0", "test/0", "train/1", "test/1"], ["train", "test", "train", "test"]
    assert ExactCopies().find(examined(names[:2], content=[1, 1], splits=splits[:2])) == []
    (found,) = ExactCopies().find(examined(names[:3], content=[1, 1, 1], splits=splits[:3]))
    assert found.images == ("train/0", "train/1")
    (found,) = ExactCopies().find(examined(names[:2], [0, 1], content=[1, 1], splits=splits[:2]))
    assert found.images == ("test/0", "train/0"), "other labels are wrong wherever they are"


def test_groups_are_those_of_equal_digests() -> None:
    random = np.random.default_rng(0)
    content = random.integers(0, 300, 500).tolist()
    found = ExactCopies().find(examined([f"{row:03}" for row in range(500)], content=content))
    expected = {tuple(f"{row:03}" for row in range(500) if content[row] == value) for value in set(content)}
    assert {finding.images for finding in found} == {group for group in expected if len(group) > 1}
