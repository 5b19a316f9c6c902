"""Cleaned copies of WebDataset tar files: the expected samples in the expected files, and nothing else."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from apply_cases import decide, decide_splits, files_below, snapshot
from shard_cases import picture, tar

from sgoif.audit.apply import DecisionsError, apply_decisions
from sgoif.images import open_images

A, B, C, D = (picture(number, 0) for number in range(4))
NOTE = b"x" * 200_000


def members(path: Path) -> list[tuple[str, bytes]]:
    """Names and contents, as the standard library reads them."""
    with tarfile.open(path) as archive:
        return [(member.name, archive.extractfile(member).read()) for member in archive]  # type: ignore[union-attr]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    root = tmp_path / "shards"
    root.mkdir()
    train = [("t/1.png", A), ("t/1.cls", b"cat\n"), ("t/1.note.txt", NOTE), ("t/2.png", B)]
    train += [("t/2.json", b'{"label": 3, "w": 1.50}'), ("../é/3.png", C), ("../é/3.cls", b"cat"), ("t/4.cls", b"cat")]
    (root / "train-0.tar").write_bytes(tar(train))
    (root / "train-1.tar").write_bytes(tar([("t/5.png", D), ("t/5.cls", b"cat")]))
    val = [("t/1.png", B), ("t/1.cls", b"3"), ("t/9.png", D), ("t/9.cls", b"3"), ("t/9.note.txt", NOTE)]
    (root / "val-0.tar").write_bytes(tar(val)[:-100_000])  # cut off within the note
    return root


def test_mixed_decisions_about_tar_files(tmp_path: Path, shards: Path) -> None:
    before = snapshot(shards)
    rows = [
        ("train-0.tar/t/1.png", "move", "cat", "", "val"),
        ("train-0.tar/t/2.png", "relabel", "3", "cat", ""),
        ("train-0.tar/../é/3.png", "relabel", "cat", "3", ""),
        ("train-1.tar/t/5.png", "drop", "cat", "", ""),
        ("val-0.tar/t/9.png", "keep", "3", "", ""),
    ]
    decisions = decide_splits(tmp_path / "d.csv", shards, rows)
    dry = apply_decisions(decisions, tmp_path / "clean", dry_run=True)
    done = apply_decisions(decisions, tmp_path / "clean")
    clean = tmp_path / "clean"
    assert files_below(clean) == {"train-0.tar", "val-0.tar"}
    found = members(clean / "train-0.tar")
    assert [name for name, _ in found] == ["t/2.png", "t/2.json", "../é/3.png", "../é/3.cls"]
    assert [content for _, content in found][::2] == [B, C]
    assert (json.loads(found[1][1]), found[3][1]) == ({"label": "cat", "w": 1.5}, b"3")
    moved = [("t/1_2.png", A), ("t/1_2.cls", b"cat\n"), ("t/1_2.note.txt", NOTE)]
    assert members(clean / "val-0.tar") == [
        ("t/1.png", B),
        ("t/1.cls", b"3"),
        ("t/9.png", D),
        ("t/9.cls", b"3"),
        *moved,
    ]
    assert snapshot(shards) == before
    for told in (dry, done):
        assert (told.kept, told.moved, told.dropped, told.ways) == (3, 1, 1, {"renamed": 1})
        assert [entry.partition(":")[0] for entry in told.left_out] == ["'train-0.tar/t/4'", "'val-0.tar'"]
    again = open_images(clean, every_split=True)
    assert [again.class_names[label] for label in again.labels] == ["cat", "3", "3", "3", "cat"]


def test_one_tar_file_without_splits(tmp_path: Path) -> None:
    """A number stays a number, and a long name what it is."""
    name = "深" * 120
    (tmp_path / "one.tar").write_bytes(
        tar([(f"{name}.png", A), (f"{name}.json", b'{"label": 1}'), ("b.png", B), ("b.json", b'{"label": 2}')])
    )
    decisions = decide(tmp_path / "d.csv", tmp_path / "one.tar", [(f"{name}.png", "relabel", "1", "2")])
    apply_decisions(decisions, tmp_path / "clean")
    found = dict(members(tmp_path / "clean/one.tar"))
    assert found == {f"{name}.png": A, f"{name}.json": b'{"label": 2}', "b.png": B, "b.json": b'{"label": 2}'}
    decisions = decide_splits(tmp_path / "d.csv", tmp_path / "one.tar", [("b.png", "move", "2", "", "val")])
    with pytest.raises(DecisionsError, match="no splits were read"):
        apply_decisions(decisions, tmp_path / "other")


def test_a_name_that_an_extended_header_holds_gets_its_number(tmp_path: Path) -> None:
    long = "é" * 130
    for split, content in (("train", A), ("test", B)):
        (tmp_path / "data").mkdir(exist_ok=True)
        samples = [(f"{long}.png", content), (f"{long}.cls", b"x"), ("b.png", C), ("b.cls", b"y")]
        (tmp_path / "data" / f"{split}.tar").write_bytes(tar(samples))
    rows = [(f"train.tar/{long}.png", "move", "x", "", "test"), ("train.tar/b.png", "drop", "y", "", "")]
    apply_decisions(decide_splits(tmp_path / "d.csv", tmp_path / "data", rows), tmp_path / "clean")
    assert files_below(tmp_path / "clean") == {"test.tar"}
    found = [name for name, _ in members(tmp_path / "clean/test.tar")]
    assert found == [f"{long}.png", f"{long}.cls", "b.png", "b.cls", f"{long}_2.png", f"{long}_2.cls"]
