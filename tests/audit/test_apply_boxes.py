"""Cleaned copies of COCO and YOLO data: exactly the expected tree, in the form it was read from."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from apply_cases import decide, decide_splits, files_below, save, snapshot

from sgoif.audit.apply import Applied, DecisionsError, apply_decisions
from sgoif.audit.checked import read_checked
from sgoif.audit.examined import Others
from sgoif.audit.results import splits_with_classes
from sgoif.images import open_images, prepare

Rows = Sequence[tuple[str, ...]]


def applied(tmp_path: Path, source: Path, rows: Rows, **options: Any) -> Applied:
    """What was done, after a look at whether a dry run says the same and the original is as it was."""
    before = snapshot(source if source.is_dir() else source.parent)
    decisions = decide_splits(tmp_path / "d.csv", source, rows)
    dry = apply_decisions(decisions, tmp_path / "clean", dry_run=True, **options)
    assert not (tmp_path / "clean").exists()
    done = apply_decisions(decisions, tmp_path / "clean", **options)
    assert snapshot(source if source.is_dir() else source.parent) == before
    for told in ("kept", "undecided", "dropped", "moved", "relabelled", "left_out", "written"):
        assert getattr(done, told) == getattr(dry, told), told
    assert [note for note in dry.notes if "share" not in note] == [note for note in done.notes if "share" not in note]
    return done


def refused(tmp_path: Path, source: Path, rows: Rows, message: str) -> None:
    before = snapshot(source)
    for dry_run in (True, False):
        with pytest.raises(DecisionsError, match=message):
            apply_decisions(decide_splits(tmp_path / "d.csv", source, rows), tmp_path / "clean", dry_run=dry_run)
    assert snapshot(source) == before
    assert {path.name for path in tmp_path.iterdir()} == {"d.csv", source.name}


def box(number: int, image: int, category: int, x: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": number, "image_id": image, "category_id": category, "bbox": [x, 0, 4, 4.5], **more}


def coco(file: Path, images: dict[int, str], boxes: list[dict[str, Any]], categories: dict[int, str]) -> None:
    """A JSON file as other tools write it, with more than is read."""
    record = {
        "info": {"year": 2017, "ü": "☃"},
        "categories": [{"id": n, "name": name, "supercategory": "animal"} for n, name in categories.items()],
        "annotations": boxes,
        "images": [{"id": n, "file_name": name, "height": 8, "flickr": n} for n, name in images.items()],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record), encoding="utf-8")


def record(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


TRAIN = [
    box(1, 1, 7, area=3), box(2, 1, 3, 2), box(3, 2, 7, segmentation=[[1.25, 2]]), box(4, 3, 3, iscrowd=1),
    box(5, 3, 3), box(6, 4, 7), box(7, 4, 3, 3),
]  # fmt: skip
VALID = [box(1, 1, 1), box(2, 2, 1, 1)]


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """Two splits in folders of their own, whose numbers mean different things; one class is not known to `valid`."""
    root = tmp_path / "animals"
    for number, name in enumerate(("train/a.png", "train/b.png", "train/c.png", "train/d.png", "train/bare.png")):
        save(number, root / name)
    for number, name in enumerate(("valid/a.png", "valid/猫 ..png")):
        save(10 + number, root / name)
    images = {1: "a.png", 2: "b.png", 3: "c.png", 4: "d.png", 9: "bare.png"}
    coco(root / "train/_annotations.coco.json", images, TRAIN, {7: "cat", 3: "dog"})
    coco(root / "valid/_annotations.coco.json", {1: "a.png", 2: "猫 ..png"}, VALID, {1: "dog"})
    return root


def test_mixed_decisions_about_coco(tmp_path: Path, animals: Path) -> None:
    old = {split: record(animals / split / "_annotations.coco.json") for split in ("train", "valid")}
    rows = [
        ("train/a.png#1", "move", "cat", "", "valid"),
        ("train/a.png#2", "keep", "dog", "", ""),  # goes along
        ("train/b.png#3", "drop", "cat", "", ""),  # the last of its image
        ("train/c.png#5", "drop", "dog", "", ""),  # a crowd stays
        ("train/d.png#6", "relabel", "cat", "dog", ""),
        ("valid/猫 ..png#2", "relabel", "dog", "cat", ""),
    ]
    done = applied(tmp_path, animals, rows)
    clean = tmp_path / "clean"
    came_from = {
        "train/c.png": "train/c.png",
        "train/d.png": "train/d.png",
        "train/bare.png": "train/bare.png",
        "valid/a.png": "valid/a.png",
        "valid/a_2.png": "train/a.png",
        "valid/猫 ..png": "valid/猫 ..png",
    }
    assert files_below(clean) == {*came_from, "train/_annotations.coco.json", "valid/_annotations.coco.json"}
    for new, source in came_from.items():
        assert (clean / new).read_bytes() == (animals / source).read_bytes()
    assert record(clean / "train/_annotations.coco.json") == {
        **old["train"],
        "images": old["train"]["images"][2:],
        "annotations": [TRAIN[3], {**TRAIN[5], "category_id": 3}, TRAIN[6]],
    }
    cat = {"id": 7, "name": "cat", "supercategory": "animal"}
    moved = {**old["train"]["images"][0], "id": 3, "file_name": "a_2.png"}
    assert record(clean / "valid/_annotations.coco.json") == {
        **old["valid"],
        "categories": [*old["valid"]["categories"], cat],
        "images": [*old["valid"]["images"], moved],
        "annotations": [
            VALID[0],
            {**VALID[1], "category_id": 7},
            {**TRAIN[0], "id": 3, "image_id": 3},
            {**TRAIN[1], "id": 4, "image_id": 3, "category_id": 1},
        ],
    }
    assert (done.kept, done.undecided, done.moved, done.dropped) == (4, 2, 2, 2)
    assert done.relabelled == {("cat", "dog"): 1, ("dog", "cat"): 1}
    assert done.left_out == []
    for note in (
        "1 image left out, since no box remains",
        "1 box moved along with others of the same image",
        "1 file got a number added to the name, which was taken",
        "1 box not judged, copied as before",
    ):
        assert note in done.notes
    again = open_images(clean, every_split=True)
    assert [again.class_names[label] for label in again.labels] == ["dog", "dog", "dog", "cat", "cat", "dog"]
    assert again.splits == ["train"] * 2 + ["valid"] * 4


def test_splits_that_share_a_folder_of_images(tmp_path: Path) -> None:
    """Both list a.png, with boxes of the same number; where --split was given, names go by it."""
    root = tmp_path / "data"
    for number, name in enumerate(("a.png", "b.png", "c.jpg", "c.png")):
        save(number, root / "images" / name)
    coco(
        root / "annotations/train.json",
        {1: "a.png", 2: "b.png", 3: "c.jpg"},
        [box(1, 1, 1), box(2, 2, 2)],
        {1: "x", 2: "y"},
    )
    coco(root / "annotations/val.json", {1: "a.png", 3: "c.png"}, [box(1, 1, 1), box(8, 3, 2)], {1: "x", 2: "y"})
    assert not applied(tmp_path, root, [("images/b.png#2", "move", "y", "", "val")]).ways.get("renamed")
    train, val = (record(tmp_path / f"clean/annotations/{split}.json") for split in ("train", "val"))
    assert [image["file_name"] for image in train["images"]] == ["a.png", "c.jpg"]
    assert [(image["id"], image["file_name"]) for image in val["images"]] == [(1, "a.png"), (3, "c.png"), (2, "b.png")]
    assert [(entry["id"], entry["image_id"]) for entry in val["annotations"]] == [(1, 1), (8, 3), (2, 2)]
    images = {f"images/{name}" for name in ("a.png", "b.png", "c.jpg", "c.png")}
    assert files_below(tmp_path / "clean") == {*images, "annotations/train.json", "annotations/val.json"}
    decisions = decide_splits(tmp_path / "d.csv", root, [("images/a.png#1", "drop", "x", "", "")])
    apply_decisions(decisions, tmp_path / "other", split="val")
    assert [image["id"] for image in record(tmp_path / "other/annotations/val.json")["images"]] == [3]
    assert len(record(tmp_path / "other/annotations/train.json")["images"]) == 3
    assert files_below(tmp_path / "other") == files_below(tmp_path / "clean")


def test_one_json_file_and_names_that_lead_elsewhere(tmp_path: Path) -> None:
    """Names out of the folder are left out, absolute ones written anew; nothing takes the place of the JSON file."""
    root, secret = tmp_path / "data", save(9, tmp_path / "secret.png")
    here, deep = save(1, root / "here.png"), save(2, root / "deep/er/a.png")
    (root / "broken.png").write_bytes(b"no image")
    names = {1: "deep/../here.png", 2: str(deep), 3: "../secret.png", 4: "boxes.json", 5: "gone.png", 6: "broken.png"}
    boxes = [box(1, 1, 1), box(2, 2, 2), box(3, 3, 1), box(4, 1, 2, 900), box(5, 77, 1), box(6, 6, 1), box(7, 1, 2)]
    coco(root / "boxes.json", names, boxes, {1: "x", 2: "y"})
    done = applied(tmp_path, root / "boxes.json", [("here.png#1", "relabel", "x", "y", "")], links=True)
    clean = tmp_path / "clean"
    assert files_below(clean) == {"boxes.json", "here.png", "deep/er/a.png", "boxes_2.json"}
    found = record(clean / "boxes.json")
    assert [image["file_name"] for image in found["images"]] == ["deep/../here.png", "deep/er/a.png", "boxes_2.json"]
    assert found["annotations"] == [{**box(1, 1, 1), "category_id": 2}, box(2, 2, 2), box(7, 1, 2)]
    assert not os.path.samefile(clean / "boxes.json", root / "boxes.json")
    assert os.path.samefile(clean / "here.png", here)
    assert secret.name not in str(sorted(clean.rglob("*")))
    assert len(done.left_out) == 3
    assert [name for name in ("../secret.png", "here.png#4", "broken.png#6") if name not in str(done.left_out)] == []
    assert "1 image without boxes left out: not found" in done.notes


def test_boxes_of_one_image_go_one_way(tmp_path: Path, animals: Path) -> None:
    coco(animals / "test/_annotations.coco.json", {1: "../valid/a.png"}, [box(1, 1, 1)], {1: "dog"})
    one, other = ("train/a.png#1", "move", "cat", "", "valid"), ("train/a.png#2", "move", "dog", "", "test")
    refused(tmp_path, animals, [one, other], r"boxes of 'train/a.png' are to go to the splits 'test', 'valid'")
    refused(tmp_path, animals, [("train/a.png#1", "move", "cat", "", "../up")], r"cannot move to the split '../up'")
    refused(tmp_path, animals, [("train/a.png", "drop", "", "", "")], "'train/a.png' is not in the data")


LINES = "0 0.5 0.5 0.5 0.5\r\n\r\n  1 0.25 0.5 0.5 0.5 0.9\r\nno box\r\n"
TABLE = """# made elsewhere
path: /data/original
train: ../train/images
val:
  - /data/original/images/val
  - more
names: ['cat', "dog"]
"""


@pytest.fixture
def yolo(tmp_path: Path) -> Path:
    root = tmp_path / "yolo"
    for number, name in enumerate(
        ("train/a.png", "train/b.png", "train/c.png", "train/sub/ü.png", "val/a.jpg", "val/d.png")
    ):
        save(number, root / "images" / name)
    for name, text in (
        ("train/a.txt", LINES),
        ("train/b.txt", "1 0.5 0.5 1 1"),
        ("train/sub/ü.txt", "0 0.5 0.5 0.5 0.5\n"),
        ("val/a.txt", "1 0.5 0.5 0.5 0.5\n"),
        ("val/d.txt", "0 0.5 0.5 0.5 0.5\n1 0.5 0.5 0.25 0.25\n"),
    ):
        (root / "labels" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "labels" / name).write_bytes(text.encode())
    (root / "data.yaml").write_text(TABLE, encoding="utf-8")
    (root / "classes.txt").write_text("cat\ndog\n")
    return root


def test_mixed_decisions_about_yolo(tmp_path: Path, yolo: Path) -> None:
    rows = [
        ("images/train/a.png#1", "relabel", "cat", "dog", ""),
        ("images/train/a.png#3", "move", "dog", "", "val"),
        ("images/train/b.png#1", "drop", "dog", "", ""),
        ("images/train/sub/ü.png#1", "move", "cat", "", "val"),
        ("images/val/d.png#1", "drop", "cat", "", ""),
    ]
    done = applied(tmp_path, yolo, rows)
    clean = tmp_path / "clean"
    images = {
        "train/c.png": "train/c.png",  # has no boxes
        "val/a.jpg": "val/a.jpg",
        "val/a_2.png": "train/a.png",  # its lines would share a file with those of a.jpg
        "val/sub/ü.png": "train/sub/ü.png",
        "val/d.png": "val/d.png",
    }
    lines = {
        "val/a.txt": "1 0.5 0.5 0.5 0.5\n",
        "val/a_2.txt": "1 0.5 0.5 0.5 0.5\r\n\r\n  1 0.25 0.5 0.5 0.5 0.9\r\nno box\r\n",
        "val/sub/ü.txt": "0 0.5 0.5 0.5 0.5\n",
        "val/d.txt": "1 0.5 0.5 0.25 0.25\n",
    }
    tree = {f"images/{name}" for name in images} | {f"labels/{name}" for name in lines}
    assert files_below(clean) == {*tree, "data.yaml", "classes.txt"}
    for new, source in images.items():
        assert (clean / "images" / new).read_bytes() == (yolo / "images" / source).read_bytes()
    for name, text in lines.items():
        assert (clean / "labels" / name).read_bytes() == text.encode()
    told = "# made elsewhere\n\ntrain: images/train\nval: images/val\nnames: ['cat', \"dog\"]\n"
    assert (clean / "data.yaml").read_text() == told
    assert (done.kept, done.moved, done.dropped, done.relabelled) == (4, 3, 2, {("cat", "dog"): 1})
    again = open_images(clean, split="val")
    assert [again.class_names[label] for label in again.labels] == ["dog", "dog", "dog", "dog", "cat"]


def test_yolo_without_splits_or_names(tmp_path: Path) -> None:
    """Two images of one name share their lines; each gets its own."""
    root = tmp_path / "plain"
    for number, name in enumerate(("a.jpg", "a.png", "b.png")):
        save(number, root / "images" / name)
    (root / "labels").mkdir()
    (root / "labels/a.txt").write_text("7 0.5 0.5 0.5 0.5\n12 0.5 0.5 0.5 0.5\n")
    (root / "labels/b.txt").write_bytes(b"\xff\xfe")
    rows = [("images/a.png#1", "relabel", "7", "12", ""), ("images/a.jpg#2", "drop", "12", "", "")]
    done = applied(tmp_path, root, rows, links=True)
    clean = tmp_path / "clean"
    expected = {"images/a.jpg", "images/a_2.png", "labels/a.txt", "labels/a_2.txt"}
    assert files_below(clean) == expected
    assert (clean / "labels/a.txt").read_text() == "7 0.5 0.5 0.5 0.5\n"
    assert (clean / "labels/a_2.txt").read_text() == "12 0.5 0.5 0.5 0.5\n12 0.5 0.5 0.5 0.5\n"
    assert len(done.left_out) == 1, "whose boxes cannot be read"


def test_an_old_file_of_decisions_is_about_all_splits(tmp_path: Path, yolo: Path) -> None:
    """As the page exports it, without new splits: leaks are found in splits that are not judged."""
    rows = [("images/val/d.png#1", "drop", "cat", ""), ("images/val/d.png#2", "drop", "dog", "")]
    done = apply_decisions(decide(tmp_path / "d.csv", yolo, rows), tmp_path / "clean")
    assert done.dropped == 2
    everything = files_below(yolo) - {"images/val/d.png", "labels/val/d.txt"}
    assert files_below(tmp_path / "clean") == everything
    for name in everything - {"data.yaml"}:
        assert (tmp_path / "clean" / name).read_bytes() == (yolo / name).read_bytes()


def test_labels_of_other_splits_are_passed_over_where_checked_ones_are_asked_for(tmp_path: Path, yolo: Path) -> None:
    collection = open_images(yolo)
    pixels = prepare(collection, tmp_path / "cache", size=8)
    lines = ["path,decision,given_label,new_label,source,finding", "images/val/d.png#1,relabel,cat,dog,,dark"]
    (tmp_path / "d.csv").write_text("\n".join([*lines, "images/train/b.png#1,relabel,dog,cat,,"]) + "\n")
    found = read_checked(tmp_path / "d.csv", collection, pixels, range(len(pixels)))
    assert [pixels.names[index] for index in found] == ["images/train/b.png#1"]


def test_images_can_be_moved_on_the_page_where_names_say_the_split(tmp_path: Path, animals: Path, yolo: Path) -> None:
    flat_one = flat(tmp_path / "flat")
    for root, expected in ((animals, ["train", "valid"]), (yolo, ["train", "val"]), (flat_one, [])):
        every = open_images(root, every_split=True)
        rows = [row for row, split in enumerate(every.splits or []) if split != every.split]
        pixels = prepare(every.pick(rows), tmp_path / f"{root.name}-others", size=8, labelled=False)
        others = Others(pixels, [(every.splits or [])[row] for row in rows])
        assert splits_with_classes(open_images(root), others) == expected
        assert splits_with_classes(open_images(root), None) == []


def flat(root: Path) -> Path:
    """Both splits list the same image."""
    save(1, root / "images/a.png")
    for split in ("train", "val"):
        coco(root / f"annotations/{split}.json", {1: "a.png"}, [box(1, 1, 1), box(2, 1, 2)], {1: "x", 2: "y"})
    return root
