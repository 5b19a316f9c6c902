"""Reading that was cut short goes on where it was, and finds what one that was not finds."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pytest
from image_cases import class_folder, picture
from PIL import Image

from sgoif.images import Collection, Pixels, open_images, prepare
from sgoif.images import parts as module
from sgoif.images.backends import Files
from sgoif.images.parts import FOLDER


class Watched(Files):
    """Files that tell which of them are decoded."""

    decoded: list[str] = []  # noqa: RUF012

    def image(self, number: int, most: int | None = None, least: int | None = None) -> Image.Image:
        path = self.file(number)
        assert path is not None
        Watched.decoded.append(f"{path.parent.name}/{path.name}")
        return super().image(number, most, least)

    def pick(self, numbers: Sequence[int]) -> Files:
        return Watched([str(self.file(number)) for number in numbers])


def opened(root: Path) -> Collection:
    collection = open_images(root)
    collection.store = Watched([str(collection.file(number)) for number in range(len(collection))])
    Watched.decoded = []
    return collection


def cut_short(root: Path, out: Path) -> None:
    def progress(done: int, total: int) -> None:
        if done >= 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(opened(root), out, progress=progress)


def equal(first: Pixels, second: Pixels) -> bool:
    tables = [pixels.measurements() for pixels in (first, second)]
    columns = [field.name for field in fields(tables[0])]
    return (
        all(getattr(first, name) == getattr(second, name) for name in ("names", "skipped", "duplicates", "content"))
        and all(first.thumbnails(number) == second.thumbnails(number) for number in range(len(first)))
        and all(getattr(tables[0], name).tobytes() == getattr(tables[1], name).tobytes() for name in columns)
    )


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """61 images, first grey and then in colour, a copy and two that cannot be read among them; parts of eight."""
    monkeypatch.setattr(module, "MOST_IMAGES", 8)
    root = class_folder(tmp_path / "in", each=30, size=(40, 30))
    for number in range(15):
        picture(number, 40, 30, "L").save(root / "cat" / f"{number}.png")
    for name in ("12.png", "20.png"):
        (root / "cat" / name).write_bytes(b"broken")
    (root / "dog" / "copy.png").write_bytes((root / "cat" / "0.png").read_bytes())
    return root


def test_what_was_read_is_not_read_again(tmp_path: Path, root: Path) -> None:
    whole, out = prepare(opened(root), tmp_path / "whole"), tmp_path / "out"
    cut_short(root, out)
    told: list[int] = []
    found = prepare(opened(root), out, progress=lambda done, total: told.append(done))
    assert told == [32, 48, 61]
    assert sorted(Watched.decoded) == sorted(open_images(root).names[32:])
    assert equal(found, whole)
    assert not (out / FOLDER).exists()


@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "link"])
def test_from_a_damaged_part_on_images_are_read_anew(tmp_path: Path, root: Path, damage: str) -> None:
    whole, out = prepare(opened(root), tmp_path / "whole"), tmp_path / "out"
    cut_short(root, out)
    part = out / FOLDER / "16.npz"
    content = part.read_bytes()
    part.unlink()
    if damage == "cut":
        part.write_bytes(content[:-100])
    elif damage == "changed":
        part.write_bytes(content[: len(content) // 2] + b"?" + content[len(content) // 2 + 1 :])
    elif damage == "link":
        (tmp_path / "elsewhere.npz").write_bytes(content)
        part.symlink_to(tmp_path / "elsewhere.npz")
    found = prepare(opened(root), out)
    assert sorted(Watched.decoded) == sorted(open_images(root).names[16:])
    assert equal(found, whole)


def test_parts_of_other_images_or_another_size_are_not_taken(tmp_path: Path, root: Path) -> None:
    out = tmp_path / "out"
    cut_short(root, out)
    assert prepare(opened(root), out, size=16).size == 16
    assert len(Watched.decoded) == 61
    cut_short(root, out)
    os.utime(root / "cat" / "0.png", (1, 1))
    prepare(opened(root), out)
    assert len(Watched.decoded) == 61
    assert not (out / FOLDER).exists()


def test_without_room_for_parts_images_are_read_all_the_same(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, state: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    whole = prepare(opened(root), tmp_path / "whole")
    monkeypatch.setattr(module, "save_state", full)
    assert equal(prepare(opened(root), tmp_path / "out"), whole)


def test_parts_that_a_kill_left_beside_finished_images_are_removed(tmp_path: Path, root: Path) -> None:
    out = tmp_path / "out"
    prepare(opened(root), out)
    (out / FOLDER).mkdir()
    (out / FOLDER / "0.npz").write_bytes(b"old")
    prepare(opened(root), out)
    assert not (out / FOLDER).exists()
