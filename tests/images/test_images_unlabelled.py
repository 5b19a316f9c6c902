"""Images whose labels do not matter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sgoif.images import ImagesError, open_images, open_unlabelled


def picture(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), value).save(path)


def test_every_image_below_a_folder_at_any_depth(tmp_path: Path) -> None:
    for name in ("b.png", "a/x.png", "a/deep/y.jpg", "train/one/z.png", ".hidden/h.png"):
        picture(tmp_path / name)
    (tmp_path / "note.txt").write_text("x")
    found = open_unlabelled(tmp_path)
    assert found.names == ["a/deep/y.jpg", "a/x.png", "b.png", "train/one/z.png"]
    assert found.labels.tolist() == [-1] * 4
    assert found.class_names == []
    assert found.image(2).size == (4, 4)
    assert open_unlabelled(tmp_path, split="train").names == ["train/one/z.png"]
    assert len(open_unlabelled(tmp_path, limit=2)) == 2
    with pytest.raises(ImagesError, match="no folder 'test'"):
        open_unlabelled(tmp_path, split="test")


def test_an_archive_needs_no_labels_and_keeps_its_order(tmp_path: Path) -> None:
    images = np.arange(5 * 16, dtype=np.uint8).reshape(5, 4, 4)
    np.savez(tmp_path / "x.npz", x=images)
    found = open_unlabelled(tmp_path / "x.npz")
    assert found.names == ["0", "1", "2", "3", "4"]
    np.testing.assert_array_equal(np.asarray(found.image(3)), images[3])
    with pytest.raises(ImagesError, match="no labels"):
        open_images(tmp_path / "x.npz")
    np.savez(tmp_path / "named.npz", x_train=images, x_test=images[:2], y_test=[0, 1], names=list("abcde"))
    assert open_unlabelled(tmp_path / "named.npz", split="test").names == ["test/0", "test/1"]
    np.savez(tmp_path / "none.npz", y=[1, 2])
    with pytest.raises(ImagesError, match="no images"):
        open_unlabelled(tmp_path / "none.npz")


def test_labelled_layouts_are_read_too_and_one_class_is_enough(tmp_path: Path) -> None:
    picture(tmp_path / "only" / "a.png")
    (tmp_path / "list.csv").write_text("path,label\nonly/a.png,cat\n")
    assert open_unlabelled(tmp_path / "list.csv").names == ["only/a.png"]
    (tmp_path / "bare.csv").write_text("path\nonly/a.png\nonly/nothing.png\n")
    bare = open_unlabelled(tmp_path / "bare.csv")
    assert bare.names == ["only/a.png"]
    assert [entry.name for entry in bare.skipped] == ["only/nothing.png"]
    with pytest.raises(ImagesError, match="no column"):
        open_unlabelled(tmp_path / "bare.csv", label_column="kind")
    with pytest.raises(ImagesError, match="hold the labels"):
        open_images(tmp_path / "bare.csv")
    assert open_unlabelled(tmp_path / "only" / "a.png").names == ["a.png"]
    with pytest.raises(ImagesError, match="image_column means nothing"):
        open_unlabelled(tmp_path / "only", image_column="x")


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ImagesError, match="holds no image"):
        open_unlabelled(tmp_path)
    with pytest.raises(ImagesError, match="does not exist"):
        open_unlabelled(tmp_path / "nowhere")
