"""Tar files of images and labels are read without unpacking; what is wrong with them is told."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from image_cases import class_folder, picture, same_pixels
from PIL import Image
from shard_cases import make_shards, pairs, tar

from sgoif.cli import main
from sgoif.images import ImagesError, UnreadableImageError, open_images, open_unlabelled
from sgoif.images.decode import decode


def encoded(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()


def test_one_tar_file(tmp_path: Path) -> None:
    path = tmp_path / "some.tar"
    path.write_bytes(tar(pairs(0, 8)))
    found = open_images(path)
    assert (found.layout, len(found), found.class_names) == ("webdataset", 8, ["0", "1", "2"])
    assert found.names == [f"train/{number:05}.png" for number in range(8)]
    assert [found.class_names[label] for label in found.labels] == ["0", "1", "2", "0", "1", "0", "0", "1"]
    content = dict(pairs(0, 8))
    for number in (0, 7):
        assert same_pixels(found.image(number), decode(content[found.names[number]]))
    assert found.store.size(3) == (24, 24)
    assert found.file(0) is None
    some = found.pick([5, 2])
    assert same_pixels(some.image(0), found.image(5))
    assert some.digest() != found.pick([2, 5]).digest()


def test_a_folder_of_shards(tmp_path: Path) -> None:
    make_shards(tmp_path / "shards", shards=3, each=4)
    (tmp_path / "shards" / "README.md").write_text("hello")
    found = open_images(tmp_path / "shards")
    assert len(found) == 12
    assert found.names[4] == "part-001.tar/train/00004.png"
    assert same_pixels(found.image(11), decode(dict(pairs(8, 4))["train/00011.png"]))
    before = found.digest()
    os.utime(tmp_path / "shards" / "part-002.tar", (0, 0))
    assert open_images(tmp_path / "shards").digest() != before


def test_splits_by_the_names_of_shards(tmp_path: Path) -> None:
    for name, first in (("train-0000.tar", 0), ("train-0001.tar", 4), ("val-0000.tar", 8)):
        (tmp_path / name).write_bytes(tar(pairs(first, 4)))
    found = open_images(tmp_path)
    assert (found.split, len(found)) == ("train", 8)
    assert "not of 'val'" in found.notes[0]
    assert len(open_images(tmp_path, split="val")) == 4
    every = open_images(tmp_path, every_split=True)
    assert (every.split, every.splits) == ("train", ["train"] * 8 + ["val"] * 4)
    assert every.names[:8] == found.names
    assert same_pixels(every.image(9), open_images(tmp_path, split="val").image(1))
    with pytest.raises(ImagesError, match="no split 'test'"):
        open_images(tmp_path, split="test")
    (tmp_path / "more.tar").write_bytes(tar(pairs(12, 4)))
    assert len(open_images(tmp_path)) == 16
    assert open_images(tmp_path, every_split=True).splits is None
    with pytest.raises(ImagesError, match="not all tar files"):
        open_images(tmp_path, split="val")


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    images = [encoded(picture(seed)) for seed in range(5)]
    files = [("a.png", images[0]), ("a.cls", b"x"), ("b.png", images[1]), ("b.cls", b"y"), ("c.png", images[2]),
             ("d.cls", b"x"), ("e.png", b"no image"), ("e.cls", b"x")]  # fmt: skip
    whole = tar(files)
    (tmp_path / "one.tar").write_bytes(whole)
    (tmp_path / "two.tar").write_bytes(whole[: len(whole) // 3])
    outside = tmp_path.parent / f"{tmp_path.name}-outside.tar"
    outside.write_bytes(whole)
    (tmp_path / "three.tar").symlink_to(outside)
    found = open_images(tmp_path)
    assert found.names[:3] == ["one.tar/a.png", "one.tar/b.png", "one.tar/e.png"]
    reasons = {entry.name: entry.reason for entry in found.skipped}
    assert "no label" in reasons["one.tar/c.png"]
    assert "no image" in reasons["one.tar/d"]
    assert "damaged" in reasons["two.tar"]
    assert "link out of the folder" in reasons["three.tar"]
    with pytest.raises(UnreadableImageError, match="known format"):
        found.image(2)
    assert {entry.name for entry in found.skipped if entry.damaged} == {"two.tar"}
    everything = open_unlabelled(tmp_path)
    assert "one.tar/c.png" in everything.names


def test_a_file_that_shrank_since_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "some.tar"
    path.write_bytes(tar(pairs(0, 8)))
    found = open_images(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UnreadableImageError, match="shorter than it was"):
        found.image(7)
    path.unlink()
    with pytest.raises(UnreadableImageError, match="cannot be read"):
        found.image(0)


def test_other_archives_are_not_taken_for_samples(tmp_path: Path) -> None:
    (tmp_path / "photos.tar").write_bytes(tar([("cat/1.png", encoded(picture(0))), ("dog/1.png", encoded(picture(1)))]))
    (tmp_path / "noise.tar").write_bytes(b"\x01" * 3000)
    for name in ("photos.tar", "noise.tar"):
        with pytest.raises(ImagesError, match="Unpack the archive first"):
            open_images(tmp_path / name)
    folder = class_folder(tmp_path / "photos")
    (folder / "backup.tar").write_bytes(tar(pairs(0, 8)))
    assert open_images(folder).layout == "folder"


def test_a_cleaned_copy_of_a_tar_file_is_a_tar_file(tmp_path: Path) -> None:
    path = tmp_path / "some.tar"
    path.write_bytes(tar(pairs(0, 8)))
    decisions = tmp_path / "decisions.csv"
    rows = ["train/00000.png,drop,0,", "train/00001.png,relabel,1,0"]
    decisions.write_text("path,decision,given_label,new_label\n" + "\n".join(rows) + "\n")
    assert main(["apply", str(decisions), "--source", str(path), "--to", str(tmp_path / "clean")]) == 0
    before, after = open_images(path), open_images(tmp_path / "clean" / "some.tar")
    assert after.names == before.names[1:]
    assert after.labels.tolist() == [0, *before.labels.tolist()[2:]]
    assert all(same_pixels(after.image(number), before.image(number + 1)) for number in range(7))
