"""Clothing1M in miniature."""

from __future__ import annotations

from pathlib import Path

import pytest
from dataset_cases import SIDE, opened_below, picture, quiet, write

from sgoif_bench.labels.datasets import load

# Clothing1M


def write_clothing(root: Path, lists: str = ".") -> None:
    """Four noisy images; three clean ones for training of which two have a noisy label too; two for the test."""
    names = {number: f"images/0/{number}/{number},{number}7.jpg" for number in range(9)}
    for number, name in names.items():
        picture(root / name, number)
    noisy = {0: 1, 1: 2, 2: 3, 3: 13, 4: 5, 5: 6, 7: 9}
    clean = {4: 5, 5: 0, 6: 7, 7: 8, 8: 2}
    keys = {"noisy_train": (0, 1, 2, 3), "clean_train": (4, 5, 6), "clean_test": (7, 8), "clean_val": ()}
    for name, numbers in keys.items():
        write(root / lists / f"{name}_key_list.txt", "".join(f"{names[number]}\n" for number in numbers))
    for kind, labels in (("noisy", noisy), ("clean", clean)):
        write(
            root / lists / f"{kind}_label_kv.txt",
            "".join(f"{names[number]} {label}\n" for number, label in labels.items()),
        )


@pytest.mark.parametrize("lists", [".", "annotations"])
def test_clothing1m_knows_some_right_labels(tmp_path: Path, lists: str) -> None:
    write_clothing(tmp_path, lists)
    with opened_below(tmp_path) as opened:
        data = load("clothing1m", tmp_path, size=SIDE, tell=quiet)
        files = opened()
    assert len(files) == len(set(files))
    assert sum(path.endswith(".jpg") for path in files) == 6
    assert data.labels.tolist() == [1, 2, 3, 13, 5, 6]
    assert data.clean_labels is not None
    assert data.clean_labels.tolist() == [-1, -1, -1, -1, 5, 0]
    assert data.verified.tolist() == [False] * 4 + [True] * 2
    assert len(data.classes) == 14
    test = load("clothing1m", tmp_path, size=SIDE, train=False, tell=quiet)
    assert test.labels.tolist() == [8, 2]
    assert test.verified.all()


def test_a_key_without_a_label_is_reported(tmp_path: Path) -> None:
    write_clothing(tmp_path)
    with open(tmp_path / "noisy_train_key_list.txt", "a") as file:
        file.write("images/0/6/6,67.jpg\n")
    data = load("clothing1m", tmp_path, size=SIDE, tell=quiet)
    assert [(entry.name, "without a label" in entry.reason) for entry in data.skipped] == [
        ("images/0/6/6,67.jpg", True)
    ]
    assert len(data) == 6
