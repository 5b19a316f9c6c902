"""Decisions about findings and about several splits, carried out: exactly the expected tree, and nothing else."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest
from apply_cases import FIRST, HEADER, decide, files_below, save, snapshot

from sgoif.audit.apply import DecisionsError, apply_decisions
from sgoif.audit.checked import read_checked
from sgoif.audit.decisions import read_decisions
from sgoif.core.score_table import to_cell
from sgoif.images import open_images, prepare

LONG = [*HEADER, "new_split", "finding"]
MIXED = [
    ("train/cat/0.png", "relabel", "cat", "dog", "", ""),
    ("train/cat/1.png", "drop", "cat", "", "", "copies"),
    ("train/cat/2.png", "move", "cat", "", "val", "bursts"),
    ("train/dog/0.png", "keep", "dog", "", "", "copies"),
    ("val/dog/0.png", "drop", "dog", "", "", "leaks"),
    ("val/dog/1.png", "move", "dog", "", "train", "leaks"),
    ("val/cat/1.png", "skip", "cat", "", "", ""),
    ("test/loose.png", "drop", "", "", "", "leaks"),
]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two splits with classes, and one without."""
    root = tmp_path / "photos"
    for s, split in enumerate(("train", "val")):
        for c, name in enumerate(("cat", "dog")):
            for i in range(3):
                save(100 * s + 10 * c + i, root / split / name / f"{i}.png")
    save(500, root / "test" / "loose.png")
    save(501, root / "test" / "other.png")
    return root


def write(path: Path, source: Path, rows: Sequence[tuple[str, ...]]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(LONG)
        for cells in rows:
            writer.writerow([to_cell(cell) for cell in (*cells[:4], str(source), *cells[4:])])
    return path


def test_mixed_decisions_give_exactly_the_expected_tree(tmp_path: Path, photos: Path) -> None:
    before = snapshot(photos)
    decisions = write(tmp_path / "d.csv", photos, MIXED)
    dry = apply_decisions(decisions, tmp_path / "clean", dry_run=True)
    applied = apply_decisions(decisions, tmp_path / "clean")
    came_from = {
        "train/dog/0_2.png": "train/cat/0.png",  # relabelled, the name was taken
        "val/cat/2_2.png": "train/cat/2.png",  # moved, the name was taken
        "train/dog/1_2.png": "val/dog/1.png",
        **{name: name for name in ("train/dog/0.png", "train/dog/1.png", "train/dog/2.png", "val/dog/2.png")},
        **{name: name for name in ("val/cat/0.png", "val/cat/1.png", "val/cat/2.png", "test/other.png")},
    }
    clean = tmp_path / "clean"
    assert files_below(clean) == set(came_from)
    for new, old in came_from.items():
        assert (clean / new).read_bytes() == (photos / old).read_bytes()
    assert snapshot(photos) == before
    for done in (dry, applied):
        assert (done.kept, done.undecided, done.moved, done.dropped) == (10, 7, 2, 3)
        assert done.relabelled == {("cat", "dog"): 1}
    assert "moved       2, to another split" in applied.summary()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "d.csv", "photos"]


def test_a_file_about_splits_copies_all_of_them_and_an_old_one_its_own(tmp_path: Path, photos: Path) -> None:
    rows = [("train/cat/0.png", "drop", "cat", "", "", "dark")]
    apply_decisions(write(tmp_path / "d.csv", photos, rows), tmp_path / "all")
    everything = {path.relative_to(photos).as_posix() for path in photos.rglob("*.png")}
    assert files_below(tmp_path / "all") == everything - {"train/cat/0.png"}
    apply_decisions(decide(tmp_path / "old.csv", photos, [rows[0][:4]]), tmp_path / "one")
    assert files_below(tmp_path / "one") == {"cat/1.png", "cat/2.png", "dog/0.png", "dog/1.png", "dog/2.png"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            ("train/cat/0.png", "move", "cat", "", "test", ""),
            "the split 'test'; there are 'train', 'val'",
        ),
        (("train/cat/0.png", "move", "cat", "", "", ""), "cannot move to the split ''"),
        (("train/cat/0.png", "move", "cat", "", "../out", ""), "cannot move to the split"),
        (("train/cat/0.png", "keep", "cat", "", "val", ""), "has the new split 'val', yet the decision is not move"),
        (("test/other.png", "move", "", "", "train", ""), "lies in no class folder"),
        (("test/other.png", "relabel", "", "cat", "", ""), "lies in no class folder"),
    ],
)
def test_moves_that_cannot_be_are_refused(tmp_path: Path, photos: Path, row: tuple[str, ...], message: str) -> None:
    before = snapshot(photos)
    with pytest.raises(DecisionsError, match=message):
        apply_decisions(write(tmp_path / "d.csv", photos, [row]), tmp_path / "clean")
    assert snapshot(photos) == before
    assert not (tmp_path / "clean").exists()


def test_moves_need_splits(tmp_path: Path, photos: Path) -> None:
    decisions = write(tmp_path / "d.csv", photos, [MIXED[2]])
    with pytest.raises(DecisionsError, match="no splits were read"):
        apply_decisions(decisions, tmp_path / "clean", split="train")
    with pytest.raises(DecisionsError, match="no splits were read"):
        apply_decisions(write(tmp_path / "d.csv", photos / "train", [("cat/2.png", *MIXED[2][1:])]), tmp_path / "clean")


def test_what_is_decided_about_findings_says_nothing_about_labels(tmp_path: Path, photos: Path) -> None:
    rows, _ = read_decisions(write(tmp_path / "d.csv", photos, MIXED))
    assert [row.judges_label for row in rows] == [True, False, False, False, False, False, True, False]
    rows, _ = read_decisions(decide(tmp_path / "old.csv", photos, FIRST))
    assert all(row.judges_label and row.new_split is None for row in rows)


def test_labels_that_were_checked_are_taken_from_such_a_file(tmp_path: Path, photos: Path) -> None:
    collection = open_images(photos)
    pixels = prepare(collection, tmp_path / "cache", size=8)
    rows = [*MIXED, ("val/cat/0.png", "relabel", "cat", "dog", "", ""), ("train/dog/2.png", "keep", "dog", "", "", "")]
    found = read_checked(write(tmp_path / "d.csv", photos, rows), collection, pixels, range(len(pixels)))
    assert {pixels.names[index]: pixels.class_names[label] for index, label in found.items()} == {
        "train/cat/0.png": "dog",
        "train/dog/2.png": "dog",
    }
    with pytest.raises(DecisionsError, match="has a decision yet about a label"):
        read_checked(write(tmp_path / "d.csv", photos, MIXED[1:6]), collection, pixels, range(len(pixels)))
