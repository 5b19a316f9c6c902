"""Boxes in the forms of COCO and YOLO: each is an image of its own, and nothing else is."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_cases import picture, same_pixels, save
from PIL import Image

from sgoif.images import ImagesError, UnreadableImageError, open_images, prepare

CATEGORIES = [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}]


def write_coco(file: Path, boxes: list[dict[str, Any]], names: tuple[str, ...] = ("a.png", "b.png")) -> Path:
    images = [{"id": number, "file_name": name, "width": 40, "height": 30} for number, name in enumerate(names)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"images": images, "annotations": boxes, "categories": CATEGORIES}))
    return file


def box(number: int, image: int, category: int, *place: float, **more: Any) -> dict[str, Any]:
    return {"id": number, "image_id": image, "category_id": category, "bbox": list(place), **more}


BOXES = [box(11, 0, 7, 2, 3, 10, 8), box(12, 1, 3, 0, 0, 40, 30), box(13, 0, 3, 29.6, 20.4, 20, 20)]


def photos(folder: Path) -> list[Image.Image]:
    pictures = [picture(1, 40, 30), picture(2, 40, 30)]
    for image, name in zip(pictures, ("a.png", "b.png"), strict=True):
        save(image, folder / name)
    return pictures


def test_each_box_of_coco_is_an_image(tmp_path: Path) -> None:
    first, second = photos(tmp_path)
    found = open_images(write_coco(tmp_path / "boxes.json", BOXES))
    assert (found.layout, found.class_names) == ("coco", ["cat", "dog"])
    assert found.names == ["a.png#11", "a.png#13", "b.png#12"]
    assert found.labels.tolist() == [0, 1, 1]
    assert same_pixels(found.image(0), first.crop((2, 3, 12, 11)))
    assert same_pixels(found.image(1), first.crop((30, 20, 40, 30))), "rounded, and cut off where the image ends"
    assert same_pixels(found.image(2), second)
    assert [found.store.size(number) for number in range(3)] == [(10, 8), (10, 10), (40, 30)]
    assert found.file(0) is None
    assert same_pixels(found.pick([2, 0]).image(1), found.image(0))


def test_every_split_of_coco_begins_with_the_one_to_judge(tmp_path: Path) -> None:
    """Both splits have the same images, and boxes with the same numbers."""
    photos(tmp_path / "images")
    for split in ("test", "train"):
        write_coco(tmp_path / "annotations" / f"{split}.json", BOXES[:2])
    alone, found = open_images(tmp_path), open_images(tmp_path, every_split=True)
    assert (found.split, found.splits) == ("train", ["train"] * 2 + ["test"] * 2)
    assert found.names == [*alone.names, *(f"{name}#2" for name in alone.names)]
    assert found.labels.tolist() == [0, 1, 0, 1]
    assert all(same_pixels(found.image(number), alone.image(number % 2)) for number in range(4))
    assert open_images(tmp_path / "annotations" / "test.json", every_split=True).splits is None


@pytest.mark.parametrize(
    ("file", "images"),
    [
        ("annotations/instances_train2017.json", "train2017"),
        ("annotations/instances_train.json", "images/train"),
        ("annotations/train.json", "images"),
        ("train/_annotations.coco.json", "train"),
        ("_annotations.coco.json", "."),
    ],
)
def test_folders_of_coco(tmp_path: Path, file: str, images: str) -> None:
    photos(tmp_path / images)
    write_coco(tmp_path / file, BOXES)
    (tmp_path / "annotations").mkdir(exist_ok=True)
    (tmp_path / "annotations/captions_train2017.json").write_text('{"images": [], "annotations": []}')
    found = open_images(tmp_path)
    assert (found.layout, found.split, len(found)) == ("coco", "train", 3)
    assert found.names[0] == ("a.png#11" if images == "." else f"{images}/a.png#11")


def test_splits_of_coco(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        photos(tmp_path / split)
        write_coco(tmp_path / split / "_annotations.coco.json", BOXES)
    assert "not of 'valid'" in open_images(tmp_path).notes[0]
    assert open_images(tmp_path, split="valid").names[0] == "valid/a.png#11"


def test_what_is_no_box_is_told(tmp_path: Path) -> None:
    photos(tmp_path / "data")
    save(picture(3), tmp_path / "secret.png")
    names = ("a.png", "b.png", "../secret.png", "gone.png", str(tmp_path / "secret.png"), "bare.png")
    wrong = [
        box(21, 0, 7, 1, 1, 0, 5), box(22, 0, 7, 1, 1, float("nan"), 5), box(23, 0, 9, 1, 1, 5, 5),
        box(24, 0, 7, 1, 1, 5), box(25, 0, 7, 1, 1, 5, 5, iscrowd=1), box(26, 2, 7, 1, 1, 5, 5),
        box(27, 3, 7, 1, 1, 5, 5), box(28, 4, 7, 1, 1, 5, 5), {"id": 29, "image_id": 0, "category_id": [7], "bbox": 3},
        box(30, 0, 7, 10**400, 1, 5, 5),
    ]  # fmt: skip
    found = open_images(write_coco(tmp_path / "data/boxes.json", BOXES + wrong, names))
    assert len(found) == 3
    reasons = {entry.name: entry.reason for entry in found.skipped}
    assert len(reasons) == len(wrong)
    assert "no area" in reasons["a.png#21"]
    assert "not listed" in reasons["a.png#23"]
    assert "crowd" in reasons["a.png#25"]
    assert "outside" in reasons["../secret.png"]
    assert "outside" in reasons[str(tmp_path / "secret.png")]
    assert "no such file" in reasons["gone.png"]
    assert "1 image has no box" in found.notes[0]


def test_a_box_beside_the_image_cannot_be_read(tmp_path: Path) -> None:
    photos(tmp_path)
    found = open_images(write_coco(tmp_path / "boxes.json", [*BOXES, box(14, 1, 7, 50, 5, 5, 5)]))
    with pytest.raises(UnreadableImageError, match="holds no pixel of the image, which has 40×30"):
        found.image(3)
    pixels = prepare(found, tmp_path / "cache")
    assert pixels.names == found.names[:3]
    assert pixels.skipped[0].damaged


@pytest.mark.parametrize(
    "text",
    [
        '{"images": [',
        '{"images": [], "annotations": []}',
        '{"images": [{"id": 1, "file_name": 3}], "annotations": [], "categories": []}',
        '{"images": {}, "annotations": 4, "categories": []}',
        '{"images":' + "[" * 100_000,
    ],
)
def test_damaged_coco_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "boxes.json").write_text(text)
    with pytest.raises(ImagesError, match="in COCO's format"):
        open_images(tmp_path / "boxes.json")


def test_other_json_is_no_coco(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"version": 1}')
    with pytest.raises(ImagesError, match="no layout that is known"):
        open_images(tmp_path / "other.json")


def write_yolo(root: Path, images: str, labels: str, text: str = "0 0.5 0.5 0.5 0.4\n1 0.1 0.1 0.2 0.2\n") -> None:
    photos(root / images)
    (root / labels).mkdir(parents=True)
    (root / labels / "a.txt").write_text(text)


@pytest.mark.parametrize(
    ("images", "labels", "split"),
    [("images", "labels", None), ("images/train", "labels/train", "train"), ("train/images", "train/labels", "train"),
     ("images/train2017", "labels/train2017", "train2017")],
)  # fmt: skip
def test_each_box_of_yolo_is_an_image(tmp_path: Path, images: str, labels: str, split: str | None) -> None:
    write_yolo(tmp_path, images, labels)
    (tmp_path / "data.yaml").write_text("train: ../../elsewhere\nnc: 2\nnames: ['cat, small', dog]  # two\n")
    found = open_images(tmp_path)
    assert (found.layout, found.split, found.class_names) == ("yolo", split, ["cat, small", "dog"])
    assert found.names == [f"{images}/a.png#1", f"{images}/a.png#2"]
    assert same_pixels(found.image(0), picture(1, 40, 30).crop((10, 9, 30, 21)))
    assert same_pixels(found.image(1), picture(1, 40, 30).crop((0, 0, 8, 6)))
    assert "1 image has no file of boxes" in " ".join(found.notes)


def test_every_split_of_yolo(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_yolo(tmp_path, f"images/{split}", f"labels/{split}")
    alone, found = open_images(tmp_path), open_images(tmp_path, every_split=True)
    assert (found.split, found.splits) == ("train", ["train"] * 2 + ["val"] * 2)
    assert found.names == [*alone.names, *(name.replace("train", "val") for name in alone.names)]
    assert same_pixels(found.image(3), alone.image(1))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("data.yaml", "names:\n  0: cat  # small\n  1: 'dog''s'\nnc: 2\n"),
        ("data.yaml", 'names:\n- cat\n- "dog\'s"\n'),
        ("dataset.yaml", 'names: {0: cat, 1: "dog\'s"}'),
        ("data.yaml", "names: [\n  cat,\n  dog's\n]\n"),
        ("classes.txt", "cat\ndog's\n"),
    ],
)
def test_names_of_classes(tmp_path: Path, name: str, text: str) -> None:
    write_yolo(tmp_path, "images", "labels")
    (tmp_path / name).write_text(text)
    assert open_images(tmp_path).class_names == ["cat", "dog's"]


@pytest.mark.parametrize(
    "text", ["nc: 2\n", "names: 3", "names: !!python/object:os.system [x]", "names:\n  5000000: x\n"]
)
def test_names_that_are_not_understood(tmp_path: Path, text: str) -> None:
    write_yolo(tmp_path, "images", "labels")
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(ImagesError, match=r"expected is, for instance, names: \[cat, dog\]"):
        open_images(tmp_path)


def test_lines_of_other_kinds(tmp_path: Path) -> None:
    lines = ["0 0.1 0.1 0.5 0.1 0.5 0.6", "1 0.5 0.5 0.4 0.4 0.9", "", "x 1 1 1 1", "0 0.5 0.5", "0 0.5 0.5 0 0.2",
             "-1 0.5 0.5 0.1 0.1", "0 nan 0.5 0.1 0.1", "9 0.5 0.5 0.1 0.1"]  # fmt: skip
    write_yolo(tmp_path, "images", "labels", "\n".join(lines))
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    found = open_images(tmp_path)
    assert found.names == ["images/a.png#1", "images/a.png#2"]
    assert same_pixels(found.image(0), picture(1, 40, 30).crop((4, 3, 20, 18)))
    assert same_pixels(found.image(1), picture(1, 40, 30).crop((12, 9, 28, 21)))
    assert [entry.name.rpartition("#")[2] for entry in found.skipped] == ["4", "5", "6", "7", "8", "9"]


def test_points_of_a_body_are_no_corners(tmp_path: Path) -> None:
    write_yolo(tmp_path, "images", "labels", "0 0.5 0.5 0.5 0.4 0.9 0.9 0.1 0.1\n1 0.5 0.5 0.2 0.2 0.1 0.1 0 0\n")
    (tmp_path / "data.yaml").write_text("kpt_shape: [2, 2]\nnames: [cat, dog]\n")
    assert same_pixels(open_images(tmp_path).image(0), picture(1, 40, 30).crop((10, 9, 30, 21)))


def test_links_that_lead_to_themselves_are_passed_over(tmp_path: Path) -> None:
    photos(tmp_path / "train")
    write_coco(tmp_path / "train/_annotations.coco.json", BOXES)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert len(open_images(tmp_path)) == 3


def test_boxes_behind_links_out_of_the_folder_are_not_read(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_yolo(root, "images", "labels")
    (tmp_path / "out.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    (root / "labels/b.txt").symlink_to(tmp_path / "out.txt")
    save(picture(5), tmp_path / "secret.png")
    (root / "images/c.png").symlink_to(tmp_path / "secret.png")
    found = open_images(root)
    assert found.names == ["images/a.png#1", "images/a.png#2"]
    assert {entry.name for entry in found.skipped} == {"labels/b.txt", "images/c.png"}


def test_each_image_is_decoded_once_for_all_its_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sgoif.images.sources import crops

    photos(tmp_path)
    many = [box(number, 0, (7, 3)[number % 2], number % 20, 0, 9, 9) for number in range(12)]
    found = open_images(write_coco(tmp_path / "boxes.json", many))
    decoded: list[Any] = []
    decode = crops.decode
    monkeypatch.setattr(crops, "decode", lambda *given: decoded.append(given) or decode(*given))
    prepare(found, tmp_path / "cache", size=8)
    assert len(decoded) == 1


def test_boxes_that_moved_change_the_digest(tmp_path: Path) -> None:
    photos(tmp_path)
    before = open_images(write_coco(tmp_path / "boxes.json", BOXES))
    after = open_images(write_coco(tmp_path / "boxes.json", [box(11, 0, 7, 2, 3, 10, 9), *BOXES[1:]]))
    assert before.digest() != after.digest()

    def content(images: Any, number: int) -> bytes:
        fed = io.BytesIO()
        images.store.content(number, fed.write)
        return fed.getvalue()

    assert content(before, 0) != content(after, 0)
    assert content(before, 1) == content(after, 1)
    assert np.array_equal(before.labels, after.labels)
