"""Large tables and many equal names: the work grows as they do, and is little for each row."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from image_cases import class_folder

from sgoif.images import open_images, open_unlabelled
from sgoif.images.open import _unique


def calls(work: Callable[[], Any], limit: int) -> int:
    """Functions that are called, of Python and of C: as many on a busy machine as on a fast one."""
    count = 0

    class TooManyError(Exception):
        pass

    def tick(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")
        if count > limit:
            sys.setprofile(None)
            raise TooManyError(f"more than {limit:,} calls")

    sys.setprofile(tick)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


class Counted(str):
    """A name that counts how often it is looked up."""

    looked = 0

    def __hash__(self) -> int:
        Counted.looked += 1
        return super().__hash__()

    def __format__(self, spec: str) -> Counted:  # type: ignore[override]
        Counted.looked += 1
        return self


def rows_read(root: Path, count: int, name: str = "{c}/{i}.png") -> Callable[[], Any]:
    table = root / f"list{count}.csv"
    lines = [name.format(c="cat" if row % 2 else "dog", i=row % 3) + f",label {row % 7}" for row in range(count)]
    table.write_text("path,label\n" + "\n".join(lines))
    return lambda: open_images(table)


@pytest.mark.parametrize(("name", "most"), [("{c}/{i}.png", 50), (" {c}/{i}.png", 64)])
def test_a_row_of_a_table_takes_few_steps(tmp_path: Path, name: str, most: int) -> None:
    """It took 200, and most of them were links looked up again for every row."""
    root = class_folder(tmp_path)
    few = calls(rows_read(root, 300, name), 10**6)
    many = calls(rows_read(root, 2300, name), 10**6)
    assert (many - few) / 2000 < most


def test_equal_names_take_steps_in_proportion() -> None:
    for count in (1000, 8000):
        Counted.looked = 0
        names = [Counted("a")] * count
        assert len(set(_unique(names))) == count
        assert Counted.looked < 12 * count


@pytest.mark.timeout(60)
def test_an_archive_of_equal_names_opens_soon(tmp_path: Path) -> None:
    count = 60_000
    names = np.array(["a"] * count)
    names[1::3], names[2::3] = "a#2", [f"a#{number}" for number in range(count // 3)]
    np.savez(tmp_path / "set.npz", x=np.zeros((count, 2, 2), np.uint8), y=np.arange(count) % 2, names=names)
    found = open_images(tmp_path / "set.npz")
    assert len(set(found.names)) == count
    assert open_unlabelled(tmp_path / "set.npz").names == found.names


def test_numbers_are_added_as_before() -> None:
    assert _unique(["a", "a", "a#2", "a", "b", "a#2"]) == ["a", "a#3", "a#2", "a#4", "b", "a#2#2"]
    assert _unique(["a", "b"]) == ["a", "b"]
