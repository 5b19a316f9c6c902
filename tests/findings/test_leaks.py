"""Pictures in several splits, and frames of one burst."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from seen_cases import examined

from sgoif.findings import Examined, Severity
from sgoif.findings.kinds.leaks import Bursts, Leaks


def test_copies_in_several_splits_are_errors_and_the_test_keeps_its_own() -> None:
    seen = examined(
        ["train/a", "val/b", "test/c", "train/d", "Test/e", "train/f", "train/g"],
        [0, 0, 1, 0, 0, 0, 0],
        splits=["train", "val", "test", "train", "Test", "train", "train"],
        content=[1, 1, 1, 4, 5, 6, 6],
        near_copies=[(3, 4)],
        width=[90, 10, 10, 90, 10, 10, 10],
    )
    exact, near = Leaks().find(seen)
    assert (exact.images, exact.keep) == (("test/c", "val/b", "train/a"), "test/c")
    assert (near.images, near.keep) == (("Test/e", "train/d"), "Test/e")
    assert {exact.severity, near.severity} == {Severity.ERROR}
    assert exact.evidence["splits"] == "test, val, train"
    assert exact.classes == ("cat", "dog")
    assert Leaks.needs == Bursts.needs == ("splits",)


def test_what_resembles_an_exact_copy_leaks_with_it() -> None:
    names, splits = ["train/a", "train/b", "test/c"], ["train", "train", "test"]
    exact, near = Leaks().find(examined(names, splits=splits, content=[1, 2, 1], near_copies=[(0, 1)]))
    assert (exact.images, near.images) == (("test/c", "train/a"), ("test/c", "train/a", "train/b"))


SIZE = 3000


def burst_cases(how: str, *, shuffled: bool = False, labels: bool = True) -> Examined:
    """Scenes of four frames, one of which is in the test, numbered or dated as they were taken."""
    random = np.random.default_rng(0)
    scenes = random.normal(size=(SIZE // 4, 32)).repeat(4, 0)
    features = scenes + 0.05 * random.normal(size=scenes.shape)
    order = random.permutation(SIZE) if shuffled else np.arange(SIZE)
    splits = ["test" if row % 4 == 2 else "train" for row in range(SIZE)]
    names = [
        f"{split}/cat/IMG_{order[row] if how == 'numbers' else row * 7:05}.jpg" for row, split in enumerate(splits)
    ]
    more: dict[str, Any] = {"taken": 1e9 + order + 60 * (order // 4)} if how == "dates" else {}
    return examined(names, [0 if labels else -1] * SIZE, splits=splits, features=features, **more)


@pytest.mark.parametrize("how", ["numbers", "dates"])
def test_frames_taken_one_after_another_are_one_finding(how: str) -> None:
    seen = burst_cases(how)
    found = Bursts().find(seen)
    expected = {frozenset(seen.names[row : row + 4]) for row in range(0, SIZE, 4)}
    assert {frozenset(finding.images) for finding in found} == expected
    assert {finding.severity for finding in found} == {Severity.WARNING}
    assert all(finding.images[0].startswith("test/") and finding.keep is None for finding in found)
    assert len(Bursts().find(burst_cases(how, labels=False))) == len(expected)


@pytest.mark.parametrize("how", ["numbers", "dates"])
def test_numbers_that_mean_nothing_find_nothing(how: str) -> None:
    assert Bursts().find(burst_cases(how, shuffled=True)) == []


def test_frames_that_are_copies_are_left_to_leaks() -> None:
    seen = burst_cases("numbers")
    copies = [tuple(range(row, row + 4)) for row in range(0, SIZE, 4)]
    again = examined(seen.names, splits=seen.splits, features=seen.features, near_copies=copies)
    assert Bursts().find(again) == []
    assert len(Leaks().find(again)) == len(copies)


def test_few_images_say_nothing_about_what_is_usual() -> None:
    names = [f"{split}/cat/{row}.png" for row, split in enumerate(["train", "test"] * 5)]
    assert Bursts().find(examined(names, splits=["train", "test"] * 5)) == []
    assert Bursts().find(examined([], splits=[])) == []
