"""WebVision in miniature, read list by list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dataset_cases import SIDE, opened_below, picture, pixels, quiet, write
from PIL import Image

from sgoif.errors import SettingError
from sgoif.images import ImagesError
from sgoif_bench.labels.datasets import LabelledData, load

# WebVision


def write_webvision(root: Path) -> list[tuple[str, int]]:
    """Three Google and two Flickr classes for training, some of them beyond the mini version. Returns the list."""
    lists: dict[str, list[tuple[str, int]]] = {"google": [], "flickr": []}
    number = 0
    for part, classes in (("google", (0, 49, 50)), ("flickr", (0, 999))):
        for label in classes:
            for _ in range(2):
                name = f"{part}/q{label:04d}/image {number}.jpg"
                picture(root / name, number)
                lists[part].append((name, label))
                number += 1
        write(root / f"info/train_filelist_{part}.txt", "".join(f"{name} {label}\n" for name, label in lists[part]))
    for label in (0, 1, 60):
        picture(root / f"val_images_256/val{label:06d}.jpg", 20 + label)
    write(root / "info/val_filelist.txt", "val000000.jpg 0\nval000001.jpg 1\nval000060.jpg 60\n")
    return lists["google"] + lists["flickr"]


def test_webvision_is_read_list_by_list(tmp_path: Path) -> None:
    listed = write_webvision(tmp_path)
    with opened_below(tmp_path) as opened:
        data = load("webvision", tmp_path, size=SIDE, tell=quiet)
        files = opened()
    assert data.images.shape == (len(listed), 3, SIDE, SIDE)
    assert data.images.dtype == torch.uint8
    assert data.labels.tolist() == [label for _, label in listed]
    assert len(data.classes) == 1000
    assert data.clean_labels is not None
    assert not data.verified.any()
    for number, (name, _) in enumerate(listed):
        original = np.asarray(Image.open(tmp_path / name)).mean(axis=(0, 1))
        assert data.images[number].float().mean(dim=(1, 2)).numpy() == pytest.approx(original, abs=1)
    assert len(files) == len(set(files)), "a file was opened twice"
    assert {f"{tmp_path}/{name}" for name, _ in listed} <= set(files)


def test_nothing_is_read_again_until_a_list_or_a_file_changes(tmp_path: Path) -> None:
    listed = write_webvision(tmp_path)
    first = load("webvision", tmp_path, size=SIDE, tell=quiet)

    def images_read(**options: Any) -> tuple[int, LabelledData]:
        with opened_below(tmp_path) as opened:
            data = load("webvision", tmp_path, size=SIDE, tell=quiet, **options)
            return sum(path.endswith(".jpg") for path in opened()), data

    read, again = images_read()
    assert read == 0
    assert torch.equal(first.images, again.images)
    assert np.array_equal(first.labels, again.labels)
    relabelled = [(name, 1 if number == 0 else label) for number, (name, label) in enumerate(listed)]
    google = "".join(f"{name} {label}\n" for name, label in relabelled[:6])
    write(tmp_path / "info/train_filelist_google.txt", google)
    read, changed = images_read()
    assert read == len(listed)
    assert changed.labels[0] == 1
    picture(tmp_path / listed[3][0], 77, width=31)
    read, changed = images_read()
    assert read == len(listed)
    assert not torch.equal(first.images[3], changed.images[3])
    assert images_read(cache=tmp_path / "sgoif-cache-elsewhere")[0] == len(listed)
    assert (tmp_path / "sgoif-cache-elsewhere/webvision-train-16").is_dir()


def test_the_array_lies_on_disk(tmp_path: Path) -> None:
    write_webvision(tmp_path)
    data = load("webvision", tmp_path, size=SIDE, tell=quiet)
    stored = tmp_path / "sgoif-cache/webvision-train-16/pixels.npy"
    before = stored.read_bytes()
    assert stored.stat().st_size == data.images.numel() + 128
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(stored) in maps.read_text()
    data.images[0] = 0  # a writer harms itself alone
    assert stored.read_bytes() == before


def test_the_mini_version_and_the_validation_images(tmp_path: Path) -> None:
    write_webvision(tmp_path)
    (tmp_path / "info/train_filelist_flickr.txt").unlink()
    mini = load("webvision-mini", tmp_path, size=SIDE, tell=quiet)
    assert mini.labels.tolist() == [0, 0, 49, 49]
    assert len(mini.classes) == 50
    validation = load("webvision-mini", tmp_path, size=SIDE, train=False, tell=quiet)
    assert validation.labels.tolist() == [0, 1]
    assert validation.verified.all()
    assert len(load("webvision", tmp_path, train=False, tell=quiet)) == 3
    write(tmp_path / "info/synsets.txt", "".join(f"n{number:08d} thing {number}, kind\n" for number in range(1000)))
    assert load("webvision-mini", tmp_path, size=SIDE, tell=quiet).classes[49] == "thing 49, kind"
    (tmp_path / "val_images_256").rename(tmp_path / "val_images")
    assert len(load("webvision-mini", tmp_path, train=False, tell=quiet)) == 2


def test_the_usual_size_is_64(tmp_path: Path) -> None:
    write_webvision(tmp_path)
    assert load("webvision-mini", tmp_path, tell=quiet).images.shape[-2:] == (64, 64)


def test_grey_images_have_three_channels_like_the_others(tmp_path: Path) -> None:
    for number, name in enumerate(("a/1", "a/2", "b/1")):
        path = tmp_path / f"train/{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(number, 20, 20)).save(path)
    data = load("imagenet", tmp_path, size=SIDE, tell=quiet)
    assert data.images.shape == (3, 3, SIDE, SIDE)
    assert torch.equal(data.images[:, 0], data.images[:, 2])


def test_unreadable_images_are_reported_and_left_out(tmp_path: Path) -> None:
    listed = write_webvision(tmp_path)
    write(tmp_path / listed[1][0], b"no image")
    (tmp_path / listed[4][0]).unlink()
    google = (tmp_path / "info/train_filelist_google.txt").read_text()
    write(tmp_path / "info/train_filelist_google.txt", f"{google}{listed[0][0]} 3\n../secret.jpg 3\n/etc/passwd 3\n")
    said: list[str] = []
    data = load("webvision", tmp_path, size=SIDE, tell=said.append)
    kept = [number for number in range(len(listed)) if number not in (1, 4)]
    assert data.labels.tolist() == [listed[number][1] for number in kept]
    assert data.rows[: len(kept) - 4].tolist() == [0, 2, 3, 5]
    original = np.asarray(Image.open(tmp_path / listed[5][0])).mean(axis=(0, 1))
    assert data.images[3].float().mean(dim=(1, 2)).numpy() == pytest.approx(original, abs=1)
    reasons = {entry.name: entry.reason for entry in data.skipped}
    assert set(reasons) == {listed[1][0], listed[4][0], listed[0][0], "../secret.jpg", "/etc/passwd"}
    assert "not an image" in reasons[listed[1][0]]
    assert "no such file" in reasons[listed[4][0]]
    assert "listed again" in reasons[listed[0][0]]
    assert "leads out" in reasons["/etc/passwd"]
    assert len(said) == 1
    assert "5 images of the list left out" in said[0]
    again: list[str] = []
    assert len(load("webvision", tmp_path, size=SIDE, tell=again.append).skipped) == 5
    assert again == said


def test_lists_that_are_none(tmp_path: Path) -> None:
    write_webvision(tmp_path)
    write(tmp_path / "info/train_filelist_flickr.txt", "flickr/a.jpg 5\n\nflickr/b.jpg 1000\n")
    with pytest.raises(
        SettingError, match=r"train_filelist_flickr\.txt, line 3: 'flickr/b.jpg 1000' is not a file and"
    ):
        load("webvision", tmp_path, tell=quiet)
    write(tmp_path / "info/train_filelist_google.txt", "\n")
    with pytest.raises(SettingError, match="name no image"):
        load("webvision-mini", tmp_path, tell=quiet)
    write(tmp_path / "info/train_filelist_google.txt", "google/a.jpg 5\ngoogle/b.jpg 6\n")
    with pytest.raises(SettingError, match=r"none of the listed images is there, for instance .*google/a\.jpg"):
        load("webvision-mini", tmp_path, tell=quiet)
    write(tmp_path / "google/a.jpg", b"broken")
    with pytest.raises(ImagesError, match="no readable image"):
        load("webvision-mini", tmp_path, tell=quiet)
