"""Folders with one subfolder per class, and what every layout shares."""

from __future__ import annotations

import os
import re
import time
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from image_cases import class_folder, picture, same_pixels, save

from sgoif.errors import SgoifError
from sgoif.images import ImagesError, UnreadableImageError, open_images
from sgoif.images.classes import class_text, in_order


def test_classes_names_labels_and_images(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos")
    collection = open_images(root)
    assert collection.names == [f"{c}/{i}.png" for c in ("cat", "dog") for i in range(3)]
    assert collection.class_names == ["cat", "dog"]
    assert collection.labels.dtype == np.int64
    assert collection.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert (collection.layout, collection.source, collection.root) == ("folder", root, root)
    assert len(collection) == 6
    assert collection.skipped == []
    assert collection.file(4) == root / "dog" / "1.png"
    assert same_pixels(collection.image(4), picture(101))


def test_nested_hidden_and_other_files(tmp_path: Path) -> None:
    root = class_folder(tmp_path, each=1)
    save(picture(9), root / "cat" / "more" / "deep" / "x.PNG")
    save(picture(9), root / "cat" / ".hidden.png")
    save(picture(9), root / ".cache" / "y.png")
    save(picture(9), root / "loose.png")
    (root / "dog" / "notes.txt").write_text("not an image")
    (root / "empty").mkdir()
    os.symlink(root / "nowhere.png", root / "dog" / "broken.png")
    os.mkfifo(root / "dog" / "pipe.png")
    collection = open_images(root)
    assert collection.names == ["cat/0.png", "cat/more/deep/x.PNG", "dog/0.png"]
    assert collection.class_names == ["cat", "dog"]
    assert {entry.name for entry in collection.skipped} == {"loose.png", "empty", "dog/broken.png", "dog/pipe.png"}


def test_pictures_that_are_not_read_are_named(tmp_path: Path) -> None:
    root = class_folder(tmp_path, each=1)
    for name in ("phone.HEIC", "camera.nef", "scraped", "notes.txt", "boxes.json"):
        (root / "dog" / name).write_bytes(b"x")
    skipped = {entry.name: entry.reason for entry in open_images(root).skipped}
    assert set(skipped) == {"dog/phone.HEIC", "dog/camera.nef", "dog/scraped"}
    assert ".heic" in skipped["dog/phone.HEIC"]
    assert "suffix" in skipped["dog/scraped"]


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "data", each=1)
    os.symlink(root, root / "cat" / "loop")
    os.symlink(root / "cat", root / "cat" / "self")
    save(picture(8), tmp_path / "elsewhere" / "bird.png")
    os.symlink(tmp_path / "elsewhere", root / "bird")
    collection = open_images(root, follow_links=True)
    assert collection.class_names == ["bird", "cat", "dog"]
    assert "bird/bird.png" in collection.names
    assert "cat/0.png" in collection.names
    assert len(collection) <= 6


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["10", "9", "1"], ["1", "9", "10"]),
        (["1.5", "-2", "10"], ["-2", "1.5", "10"]),
        (["10", "9", "b"], ["10", "9", "b"]),
        (["Z", "a", "é"], ["Z", "a", "é"]),
        (["nan", "1"], ["1", "nan"]),
    ],
)
def test_order_of_classes(tmp_path: Path, names: list[str], expected: list[str]) -> None:
    assert in_order(names) == expected
    assert open_images(class_folder(tmp_path, names, each=1)).class_names == expected


def test_labels_as_text() -> None:
    assert [class_text(v) for v in (3, 3.0, np.int64(3), "3", b"cat", True)] == ["3", "3", "3", "3", "cat", "True"]
    assert [class_text(v) for v in (None, float("nan"), "", "  ")] == [None] * 4


def test_splits_instead_of_classes(tmp_path: Path) -> None:
    class_folder(tmp_path / "train")
    class_folder(tmp_path / "val", each=2)
    (tmp_path / "annotations").mkdir()
    collection = open_images(tmp_path)
    assert collection.names[0] == "train/cat/0.png"
    assert (collection.split, len(collection)) == ("train", 6)
    assert any("'train'" in note and "'val'" in note for note in collection.notes)
    assert collection.file(0) == tmp_path / "train" / "cat" / "0.png"
    assert open_images(tmp_path, split="val").names[0] == "val/cat/0.png"
    with pytest.raises(ImagesError, match=r"no split 'test'.*'train', 'val'"):
        open_images(tmp_path, split="test")


def test_the_training_split_is_found_however_it_is_written(tmp_path: Path) -> None:
    class_folder(tmp_path / "Train")
    class_folder(tmp_path / "Val", each=2)
    assert open_images(tmp_path).names[0] == "Train/cat/0.png"


def test_a_test_split_without_classes_is_no_class(tmp_path: Path) -> None:
    class_folder(tmp_path / "train")
    save(picture(0), tmp_path / "test" / "0.png")
    collection = open_images(tmp_path)
    assert (collection.split, collection.class_names) == ("train", ["cat", "dog"])


def test_classes_one_level_deeper_are_pointed_out(tmp_path: Path) -> None:
    class_folder(tmp_path / "photos")
    with pytest.raises(ImagesError, match=r"only one class.*one level deeper, give '.*photos'"):
        open_images(tmp_path)


def test_classes_called_train_and_test_stay_classes(tmp_path: Path) -> None:
    assert open_images(class_folder(tmp_path, ("test", "train"))).class_names == ["test", "train"]
    with pytest.raises(ImagesError, match="no splits"):
        open_images(tmp_path, split="train")


def test_limit_takes_images_of_all_classes(tmp_path: Path) -> None:
    collection = open_images(class_folder(tmp_path, ("a", "b", "c"), each=10), limit=6)
    assert len(collection) == 6
    assert np.bincount(collection.labels).tolist() == [2, 2, 2]
    assert same_pixels(collection.image(5), picture(209))
    with pytest.raises(ImagesError, match="limit = 1"):
        open_images(tmp_path, limit=1)


def test_a_class_without_images_under_the_limit_is_left_out(tmp_path: Path) -> None:
    class_folder(tmp_path, ("a", "c"), each=20)
    class_folder(tmp_path, ("b",), each=1)
    collection = open_images(tmp_path, limit=2)
    assert collection.class_names == ["a", "c"]
    assert collection.labels.tolist() == [0, 1]
    assert [entry.name for entry in collection.skipped] == ["b"]


STRANGE = ["<b>&amp;", "a\nb", "quo\"te's", "猫", "Ünï", "x" * 200, "=1+1", "[red]no", "%s{}", "back\\slash"]


def test_strange_names_survive(tmp_path: Path) -> None:
    for i, name in enumerate(STRANGE):
        save(picture(i), tmp_path / name / f"{name}.png")
    collection = open_images(tmp_path)
    assert collection.class_names == sorted(STRANGE)
    assert set(collection.names) == {f"{name}/{name}.png" for name in STRANGE}
    for i in range(len(collection)):
        assert collection.image(i).size == (16, 12)


def test_names_that_are_not_utf8_are_shown_as_text(tmp_path: Path) -> None:
    class_folder(tmp_path, each=1)
    odd = os.fsencode(tmp_path) + b"/cat/caf\xe9.png"
    save(picture(7), tmp_path / "x.png").rename(os.fsdecode(odd))
    collection = open_images(tmp_path)
    assert "cat/caf\\xe9.png" in collection.names
    collection.names[0].encode()
    assert collection.image(collection.names.index("cat/caf\\xe9.png")).size == (16, 12)
    assert len(collection.digest()) == 64


def test_digest_notices_every_change(tmp_path: Path) -> None:
    root = class_folder(tmp_path)
    first = open_images(root).digest()
    assert open_images(root).digest() == first
    seen = {first}
    for change in (
        lambda: os.utime(root / "cat" / "0.png", (time.time() + 5, time.time() + 5)),
        lambda: (root / "cat" / "0.png").rename(root / "cat" / "z.png"),
        lambda: (root / "cat" / "1.png").rename(root / "dog" / "moved.png"),
        lambda: (root / "dog").rename(root / "wolf"),
        lambda: (root / "wolf" / "0.png").write_bytes(b"other"),
    ):
        change()
        seen.add(open_images(root).digest())
    assert len(seen) == 6


def test_an_image_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    class_folder(tmp_path)
    (tmp_path / "cat" / "1.png").write_bytes(b"")
    with pytest.raises(UnreadableImageError, match=r"'cat/1\.png': the file is empty"):
        open_images(tmp_path).image(1)


def test_mistakes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ImagesError, match="does not exist"):
        open_images(tmp_path / "none")
    with pytest.raises(ImagesError, match="no readable image"):
        open_images(tmp_path)
    save(picture(0), tmp_path / "cat" / "0.png")
    with pytest.raises(ImagesError, match="single image"):
        open_images(tmp_path)
    save(picture(1), tmp_path / "cat" / "1.png")
    (tmp_path / "labels.csv").write_text("path,label\n")
    with pytest.raises(ImagesError, match=r"only one class, 'cat'.*audit\s+compares classes.*labels\.csv"):
        open_images(tmp_path)
    (tmp_path / "data.zip").write_bytes(b"PK")
    with pytest.raises(ImagesError, match=r"Unpack the archive first"):
        open_images(tmp_path / "data.zip")
    with pytest.raises(ImagesError, match=r"layout = 'x' is unknown; choose auto, npz"):
        open_images(tmp_path, layout="x")
    with pytest.raises(ImagesError, match="does not look like"):
        open_images(tmp_path, layout="npz")
    with pytest.raises(ImagesError, match=r"root means nothing"):
        open_images(tmp_path, root=tmp_path)
    assert issubclass(ImagesError, SgoifError)


def test_five_hundred_classes(tmp_path: Path) -> None:
    data = save(picture(0, 8, 8), tmp_path / "one.png").read_bytes()
    for c in range(500):
        (tmp_path / "data" / f"{c}").mkdir(parents=True)
        (tmp_path / "data" / f"{c}" / "0.png").write_bytes(data)
    collection = open_images(tmp_path / "data")
    assert collection.class_names == [str(c) for c in range(500)]
    assert collection.labels.tolist() == [int(name.split("/")[0]) for name in collection.names]


TWINS = [
    (("Café", "Cafe\u0301"), r"'Café' and 'Café' differ only in how letters .*'Cafe\\u0301' and 'Caf\\xe9'"),
    (("cat", "Cat"), "'Cat' and 'cat' differ only in upper and lower case"),
    (("cat", "cat "), "'cat' and 'cat ' differ only in spaces"),
    (("Äpfel", "a\u0308pfel"), "differ only in upper and lower case"),
]


@pytest.mark.parametrize("kind", ["folder", "table"])
@pytest.mark.parametrize(("names", "said"), TWINS)
def test_classes_whose_names_look_alike_stay_apart_and_are_named(
    tmp_path: Path, names: tuple[str, ...], said: str, kind: str
) -> None:
    root = class_folder(tmp_path, (*names, "other"))
    if kind == "table":
        (tmp_path / "list.csv").write_text(
            "path,label\n" + "".join(f'{name}/{i}.png,"{name}"\n' for name in (*names, "other") for i in range(3))
        )
        root = tmp_path / "list.csv"
    collection = open_images(root)
    if kind == "table" and names[1] == "cat ":  # which says so itself
        assert collection.class_names == ["cat", "other"]
        assert "spaces around 3 labels" in collection.notes[0]
        return
    assert set(collection.class_names) == {*names, "other"}
    (note,) = collection.notes
    assert re.search(unicodedata.normalize("NFC", said), unicodedata.normalize("NFC", note))
    assert "kept apart" in note


def test_many_twins_are_counted(tmp_path: Path) -> None:
    root = class_folder(tmp_path, [f"{letter}{end}" for letter in "abcdefg" for end in ("x", "X")], each=1)
    notes = open_images(root).notes
    assert len(notes) == 6
    assert notes[5] == "2 more classes have such twins: 'fX', 'gX'"
    assert open_images(class_folder(tmp_path / "plain", ("a", "b", "1", "01"))).notes == []


def test_every_split_is_opened_with_the_split_of_each_image(tmp_path: Path) -> None:
    class_folder(tmp_path / "train")
    class_folder(tmp_path / "val", ("cat", "wolf"), each=1)
    save(picture(7), tmp_path / "test" / "7.png")
    (tmp_path / "train" / "empty").mkdir()
    os.symlink(tmp_path / "train" / "cat" / "0.png", tmp_path / "val" / "cat" / "link.png")
    (tmp_path / "annotations").mkdir()
    collection = open_images(tmp_path, every_split=True)
    assert collection.split == "train"
    assert collection.splits == [name.partition("/")[0] for name in collection.names]
    assert collection.names == ["test/7.png", *open_images(tmp_path).names, "val/cat/0.png", "val/wolf/0.png"]
    assert collection.class_names == ["cat", "dog", "wolf"]
    assert collection.labels.tolist() == [-1, 0, 0, 0, 1, 1, 1, 0, 2]
    assert {entry.name for entry in collection.skipped} == {"train/empty", "val/cat/link.png"}
    assert collection.file(0) == tmp_path / "test" / "7.png"
    assert collection.pick([8, 0]).splits == ["val", "test"]
    assert open_images(tmp_path, split="val", every_split=True).split == "val"
    few_of_them = open_images(tmp_path, every_split=True, limit=3)
    assert few_of_them.splits == ["test", "train", "val"]
    assert (few_of_them.labels.tolist(), few_of_them.class_names) == ([-1, 0, 1], ["dog", "wolf"])


def test_without_splits_every_split_is_the_folder(tmp_path: Path) -> None:
    collection = open_images(class_folder(tmp_path), every_split=True)
    assert (collection.split, collection.splits, len(collection)) == (None, None, 6)
    np.savez(tmp_path / "x.npz", x=np.zeros((4, 8, 8, 3), np.uint8), y=[0, 0, 1, 1])
    with pytest.raises(ImagesError, match="every_split means nothing"):
        open_images(tmp_path / "x.npz", every_split=True)
