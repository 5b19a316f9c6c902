"""Copies are reported by what has to be done about them: other labels first, then those of one class."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from PIL import Image
from seen_cases import examined

from sgoif.findings import Examined
from sgoif.findings.finding import Severity
from sgoif.findings.kinds.copies import ExactCopies, NearCopies
from sgoif.findings.same_pictures import grey_copies
from sgoif.images.measurements import Measurements, measure


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


def clouds(count: int) -> list[Image.Image]:
    random = np.random.default_rng(0)
    small = (random.integers(0, 220, (count, 6, 6, 1)) + random.integers(0, 36, (count, 1, 1, 3))).astype(np.uint8)
    return [Image.fromarray(pixels).resize((40, 40), Image.Resampling.BICUBIC) for pixels in small]


def measured(images: list[Image.Image]) -> Measurements:
    rows = [measure(image, bytes([number]) * 16, grey=image.mode == "L") for number, image in enumerate(images)]
    return Measurements.of(rows)


def test_grey_copies_are_found_by_hash_and_thumbnail() -> None:
    images = clouds(60)
    greys = [image.convert("L") for image in images[:10]]
    assert grey_copies(measured([*images, *greys])) == [[60 + number, number] for number in range(10)]
    assert grey_copies(measured(images)) == []
    assert grey_copies(measured([*images[10:], *greys])) == []
    flat = [Image.new("L", (40, 40), 90), Image.new("RGB", (40, 40), (90, 90, 90))]
    assert grey_copies(measured([*images, *flat])) == []


def test_grey_copies_join_the_groups_of_their_originals() -> None:
    images = clouds(20)
    found = measured([*images, images[3], images[3].convert("L"), images[3].convert("L")])
    content = found.content.copy()
    content[22] = content[21]
    names = [f"{number}.png" for number in range(23)]
    seen = Examined(names, np.zeros(23, np.int64), ["a"], replace(found, content=content), near_copies=[(3, 20)])
    assert seen.same_picture == [[3, 20, 21, 22]]
