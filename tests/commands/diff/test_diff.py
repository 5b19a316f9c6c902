"""`sgoif diff` tells moved, relabelled and changed images from new ones, and which findings are new."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sgoif.cli import main
from sgoif.commands.diff.changes import Change, compare_findings, compare_images
from sgoif.commands.diff.versions import Version
from sgoif.findings import Finding, Severity
from sgoif.images import open_images, prepare


def version(**images: str) -> Version:
    """Images by name, each as its content and the first letter of its class."""
    return Version({name: (text[:-1].encode(), text[-1]) for name, text in images.items()})


def test_every_image_is_in_one_place() -> None:
    old = version(same="1a", moved="2a", relabelled="3a", both="4a", changed="5a", gone="6a")
    new = version(same="1a", there="2a", relabelled="3b", other="4b", changed="7a", fresh="8b")
    found = compare_images(old, new)
    assert found.same == 1
    assert found.moved == (Change("moved", "there", "a", "a"),)
    assert set(found.relabelled) == {Change("relabelled", "relabelled", "a", "b"), Change("both", "other", "a", "b")}
    assert found.changed == (Change("changed", "changed", "a", "a"),)
    assert (found.removed, found.added) == (("gone",), ("fresh",))


def test_files_that_were_numbered_anew_were_moved() -> None:
    old = version(**{f"{number}": f"{number}a" for number in range(5)})
    new = version(**{f"{number - 1}": f"{number}a" for number in range(1, 5)})
    found = compare_images(old, new)
    assert (found.same, found.changed, found.added, found.removed) == (0, (), (), ("0",))
    assert {(pair.old, pair.new) for pair in found.moved} == {(f"{n}", f"{n - 1}") for n in range(1, 5)}


def test_of_several_copies_the_nearest_is_meant() -> None:
    old = Version({"a/1": (b"x", "a"), "b/2": (b"x", "b"), "a/3": (b"x", "a")})
    new = Version({"z/9": (b"x", "c"), "n/2": (b"x", "b"), "n/5": (b"x", "a"), "m/1": (b"x", "a")})
    found = compare_images(old, new)
    assert {(pair.old, pair.new) for pair in found.moved} == {("a/1", "m/1"), ("b/2", "n/2"), ("a/3", "n/5")}
    assert (found.relabelled, found.added) == ((), ("z/9",))


def test_images_that_cannot_be_read_go_by_their_names() -> None:
    old, new = Version({"a": (b"", "a"), "b": (b"", "a")}), Version({"a": (b"", "a"), "c": (b"", "a")})
    found = compare_images(old, new)
    assert (found.same, found.moved, found.removed, found.added) == (1, (), ("b",), ("c",))


def test_a_finding_outlives_a_new_name_of_its_image() -> None:
    images = compare_images(version(one="1a", two="2a"), version(uno="1a", two="2a"))
    before = [_finding("dark", "one"), _finding("blurry", "two")]
    after = [_finding("dark", "uno"), _finding("bright", "two")]
    found = compare_findings(before, after, images)
    assert (found.new, found.gone, found.still) == ((after[1],), (before[1],), (after[0],))


def _finding(kind: str, *images: str) -> Finding:
    return Finding(kind, Severity.WARNING, f"it is {kind}", images)


@pytest.fixture
def versions(tmp_path: Path) -> tuple[Path, Path]:
    """A folder, and another with one image of each kind of change."""
    old, new = tmp_path / "old", tmp_path / "new"
    for seed, name in enumerate(["cat/0.png", "cat/1.png", "cat/2.png", "cat/3.png", "dog/0.png", "dog/1.png"]):
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(old / name)
    shutil.copytree(old, new)
    (new / "cat/1.png").rename(new / "cat/[bold]\n.png")
    (new / "cat/2.png").rename(new / "dog/2.png")
    (new / "cat/3.png").unlink()
    (new / "bird").mkdir()
    Image.new("RGB", (16, 16), "red").save(new / "bird/0.png")
    Image.open(old / "dog/1.png").rotate(90).save(new / "dog/1.png")
    return old, new


def told(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["diff", *map(str, words), "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


EXPECTED = {
    "same": 2, "moved": [["cat/1.png", "cat/[bold]\n.png"]], "relabelled": [["cat/2.png", "dog/2.png"]],
    "changed": [["dog/1.png", "dog/1.png"]], "removed": ["cat/3.png"], "added": ["bird/0.png"],
}  # fmt: skip


def summed(record: dict[str, Any]) -> dict[str, Any]:
    images = dict(record["images"])
    for name in ("moved", "relabelled", "changed"):
        images[name] = [[one["old"], one["new"]] for one in images[name]]
    return images


def test_two_folders(versions: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    record = told(capsys, *versions)
    assert summed(record) == EXPECTED
    assert record["compared_by"] == "stored bytes"
    assert record["findings"] is None
    sizes = {row["class"]: (row["before"], row["after"]) for row in record["classes"]}
    assert sizes == {"bird": (0, 1), "cat": (4, 2), "dog": (2, 3)}


def test_what_a_terminal_shows(
    versions: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["diff", *map(str, versions)]) == 0
    text = capsys.readouterr().out
    assert r"cat/[bold]\n.png" in text
    assert "cat → dog" in text
    lines = [line.replace("│", " ").split() for line in text.splitlines()]
    assert ["bird", "added", "0", "1", "+1"] in lines
    assert ["cat", "4", "2", "-2"] in lines
    assert ["same", "2"] in lines


def test_all_splits_are_compared(
    versions: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = versions
    for name in ("first", "second"):
        shutil.copytree(old, tmp_path / name / "train")
        shutil.copytree(old, tmp_path / name / "val")
    shutil.rmtree(tmp_path / "second/val")
    shutil.copytree(new, tmp_path / "second/val")
    record = told(capsys, tmp_path / "first", tmp_path / "second")
    assert record["images"]["added"] == ["val/bird/0.png"]
    assert record["images"]["same"] == 6 + 2
    run = make_run(tmp_path / "run", tmp_path / "first", [])
    images = told(capsys, run, tmp_path / "second")["images"]
    assert (images["same"], images["added"]) == (6, []), "the run is about train alone"


def make_run(folder: Path, images: Path, findings: list[Finding]) -> Path:
    prepare(open_images(images), folder / "cache")
    (folder / "run.json").write_text("{}")
    entries = [
        {"kind": one.kind, "severity": one.severity, "message": one.message, "images": one.images, "classes": [],
         "evidence": {}, "advice": "", "keep": None, "about": ""} for one in findings
    ]  # fmt: skip
    (folder / "findings.json").write_text(json.dumps({"version": 1, "findings": entries}))
    return folder


def test_runs_are_compared_by_pixels_and_findings(
    versions: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = versions
    again = Image.open(new / "cat/0.png")
    again.save(new / "cat/0.png", compress_level=0)  # other bytes, the same pixels
    before = make_run(tmp_path / "before", old, [_finding("dark", "cat/1.png"), _finding("blurry", "cat/3.png")])
    after = make_run(tmp_path / "after", new, [_finding("dark", "cat/[bold]\n.png"), _finding("bright", "dog/1.png")])
    record = told(capsys, before, after)
    assert summed(record) == EXPECTED
    assert record["compared_by"] == "decoded pixels"
    counts = {name: [one["kind"] for one in found] for name, found in record["findings"].items()}
    assert counts == {"new": ["bright"], "gone": ["blurry"], "still": ["dark"]}
    assert main(["diff", str(before), str(after)]) == 0
    text = capsys.readouterr().out
    assert "findings: 1 new, 1 gone, 1 still there" in text
    assert "new  warning  bright: 'dog/1.png': it is bright" in text
    mixed = told(capsys, before, new)
    assert summed(mixed) == EXPECTED
    assert "findings are not compared" in mixed["notes"][0]


def test_mistakes_are_explained(
    versions: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, _ = versions
    run = make_run(tmp_path / "run", old, [])
    assert main(["diff", str(run), str(run), "--split", "train"]) == 2
    assert "--split say" in capsys.readouterr().err
    shutil.rmtree(run / "cache")
    assert main(["diff", str(run), str(old)]) != 0
    assert "gone or damaged" in capsys.readouterr().err
    assert main(["diff", str(tmp_path / "none"), str(old)]) != 0
    assert "does not exist" in capsys.readouterr().err
