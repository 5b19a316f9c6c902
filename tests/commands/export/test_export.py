"""`sgoif export` writes what other tools read: each form as its publisher describes it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sgoif.cli import main
from sgoif.commands.export.forms import DATALAB, FORMS
from sgoif.core.score_table import ScoreTable, texts
from sgoif.images import open_images, prepare

NAMES = ["cat/0.png", "cat/a b#1%.png", "dog/0.png", "dog/1.png"]
FOUND: list[dict[str, Any]] = [
    {"kind": "dark", "severity": "warning", "message": "it is almost black", "images": ["cat/0.png"]},
    {"kind": "copies", "severity": "error", "message": "one picture, two labels", "images": ["cat/0.png", "dog/0.png"]},
    {"kind": "imbalance", "severity": "note", "message": "few dogs", "images": [], "classes": ["dog"]},
]


def make_run(folder: Path, images: Path) -> Path:
    pixels = prepare(open_images(images), folder / "cache")
    rest = {"classes": [], "evidence": {}, "advice": "", "keep": None, "about": ""}
    (folder / "findings.json").write_text(json.dumps({"version": 1, "findings": [{**rest, **one} for one in FOUND]}))
    count = len(pixels)
    ScoreTable(
        {
            "path": texts(pixels.names),
            "is_label_issue": np.arange(count) == 0,
            "label_score": np.array([0.1, *[0.9] * (count - 1)]),
            "given_label": texts(pixels.class_names[label] for label in pixels.labels),
            "predicted_label": texts(["dog", *(pixels.class_names[label] for label in pixels.labels[1:])]),
            "probability_wrong": np.array([0.8, *[0.25] * (count - 2), np.nan]),
        }
    ).to_csv(folder / "issues.csv")
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for seed, name in enumerate(NAMES):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


def exported(tmp_path: Path, photos: Path, to: str, capsys: pytest.CaptureFixture[str]) -> tuple[Path, dict[str, Any]]:
    out = tmp_path / f"new/{to}{FORMS[to].suffix}"
    run = tmp_path / "run"
    run = run if run.exists() else make_run(run, photos)
    assert main(["export", str(run), "--to", to, "--out", str(out), "--json"]) == 0
    done: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert done["images"] == len(NAMES)
    assert Path(done["root"]) == photos
    return out, done


def test_fiftyone_gets_a_label_with_attributes_for_each_path(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, done = exported(tmp_path, photos, "fiftyone", capsys)
    made = json.loads(out.read_text())
    assert made["classes"] == ["cat", "dog"]
    assert set(made["labels"]) == {name.removesuffix(".png") for name in NAMES}
    first, last = made["labels"]["cat/0"], made["labels"]["dog/1"]
    assert first["label"] == 0
    assert first["attributes"]["findings"] == "copies, dark"
    assert first["attributes"]["severity"] == "error"
    assert first["attributes"]["suggested_label"] == "dog"
    assert last["label"] == 1
    assert last["attributes"]["findings"] == ""
    assert "probability_wrong" not in last["attributes"], "what is not known is left out"
    assert done["notes"] == [
        "1 finding left out ('imbalance'): about no image that can be read, for which this form has no place"
    ]


def test_files_that_fiftyone_cannot_tell_apart_are_named(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (16, 12)).save(photos / "dog/1.bmp")
    run = make_run(tmp_path / "run", photos)
    assert main(["export", str(run), "--to", "fiftyone", "--out", str(tmp_path / "x.json")]) == 0
    assert "of these only one counts: 'dog/1'" in capsys.readouterr().err


def test_label_studio_gets_tasks_with_predictions(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, done = exported(tmp_path, photos, "label-studio", capsys)
    tasks = json.loads(out.read_text())
    assert [task["data"]["name"] for task in tasks] == ["cat/0.png", "dog/0.png", "cat/a b#1%.png", "dog/1.png"]
    assert tasks[2]["data"]["image"] == "/data/local-files/?d=cat/a%20b%231%25.png"
    (prediction,) = tasks[0]["predictions"]
    (result,) = prediction["result"]
    assert result == {"from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": ["dog"]}}
    assert prediction["score"] == pytest.approx(0.8)
    assert tasks[1]["predictions"][0]["score"] == pytest.approx(0.75), "that the given label is right"
    assert "score" not in tasks[3]["predictions"][0]
    assert "DOCUMENT_ROOT" in done["next_step"]


def test_datalab_gets_its_columns(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = exported(tmp_path, photos, "datalab", capsys)
    with out.open(newline="") as file:
        rows = {row["path"]: row for row in csv.DictReader(file)}
    assert list(rows) == NAMES
    assert rows["cat/0.png"] == {
        "path": "cat/0.png", "given_label": "cat", "predicted_label": "dog", "is_label_issue": "True",
        "label_score": "0.1", "is_dark_issue": "True", "dark_score": "0.0",
        "is_near_duplicate_issue": "True", "near_duplicate_score": "0.0",
    }  # fmt: skip
    assert rows["dog/0.png"]["is_dark_issue"] == "False"
    assert rows["dog/0.png"]["dark_score"] == "1.0"
    assert rows["dog/0.png"]["is_near_duplicate_issue"] == "True"


def test_names_of_issues_are_those_of_cleanlab() -> None:
    factory = pytest.importorskip("cleanlab.datalab.internal.issue_manager_factory")
    adapter = pytest.importorskip("cleanlab.datalab.internal.adapter.constants")
    known = {*factory.REGISTRY[next(iter(factory.REGISTRY))], *adapter.DEFAULT_CLEANVISION_ISSUES}
    assert set(DATALAB.values()) <= known


def test_coco_gets_boxes_with_attributes(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, done = exported(tmp_path, photos, "coco", capsys)
    made = json.loads(out.read_text())
    names = {image["id"]: image["file_name"] for image in made["images"]}
    classes = {category["id"]: category["name"] for category in made["categories"]}
    assert sorted(names.values()) == NAMES
    assert made["images"][0] == {"id": 1, "file_name": "cat/0.png", "width": 16, "height": 12}
    assert {names[one["image_id"]]: classes[one["category_id"]] for one in made["annotations"]} == {
        name: name[:3] for name in NAMES
    }
    first = made["annotations"][0]
    assert (first["bbox"], first["area"], first["iscrowd"]) == ([0, 0, 16, 12], 192, 0)
    assert first["attributes"]["findings"] == "copies, dark"
    assert [one["kind"] for one in made["info"]["findings"]] == ["imbalance"]
    assert done["notes"] == []
    again = open_images(out, root=photos)
    assert again.names == [f"{name}#{number}" for number, name in enumerate(NAMES, start=1)]
    assert [again.class_names[label] for label in again.labels] == [name[:3] for name in NAMES]
    with Image.open(photos / NAMES[0]) as image:
        assert np.array_equal(np.asarray(again.image(0)), np.asarray(image))


def test_images_without_files_go_where_none_are_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x=pixels, y=[0, 0, 1, 1])
    run = make_run(tmp_path / "run", tmp_path / "images.npz")
    assert main(["export", str(run), "--to", "fiftyone", "--out", str(tmp_path / "x.json")]) != 0
    assert "share files" in capsys.readouterr().err
    assert main(["export", str(run), "--to", "coco", "--out", str(tmp_path / "x.json")]) == 0
    assert len(json.loads((tmp_path / "x.json").read_text())["images"]) == 4


def test_mistakes_of_an_export_are_explained(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", photos)
    for words, complaint in (
        ((str(run), "--to", "excel", "--out", "x"), "choose fiftyone, label-studio, datalab, coco"),
        ((str(run), "--to", "coco", "--out", str(tmp_path)), "is a folder"),
        ((str(photos), "--to", "coco", "--out", "x"), "holds no findings.json"),
    ):
        assert main(["export", *words]) != 0
        assert complaint in capsys.readouterr().err
