"""Decisions that do not fit, and places where no copy may go."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from apply_cases import FIRST, HEADER, Row, decide, save, snapshot

from sgoif.audit.apply import DecisionsError, apply_decisions
from sgoif.images import ImagesError, open_images


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for c, name in enumerate(("cat", "dog", "owl")):
        for i in range(4):
            save(10 * c + i, root / name / f"{i}.png")
    save(90, root / "cat" / "deep" / "er" / "0.png")
    return root


def refuse(tmp_path: Path, photos: Path, rows: Sequence[Row], message: str) -> None:
    before = snapshot(photos)
    for dry_run in (True, False):
        with pytest.raises(DecisionsError, match=message):
            apply_decisions(decide(tmp_path / "d.csv", photos, rows), tmp_path / "clean", dry_run=dry_run)
    assert sorted(os.listdir(tmp_path)) == ["d.csv", "photos"]
    assert snapshot(photos) == before


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("cat/9.png", "drop", "cat", ""), r"row 7: 'cat/9\.png' is not in the data"),
        (("owl/0.png", "delete", "owl", ""), "none of keep, relabel, drop, skip"),
        (("owl/0.png", "drop", "dog", ""), "should have the label 'dog' but has 'owl'"),
        (("owl/0.png", "relabel", "owl", ""), "new_label is empty"),
        (("owl/0.png", "relabel", "owl", "Dog"), "'Dog' of 'owl/0.png' is not a class of the data; did you mean 'dog'"),
        (("owl/0.png", "relabel", "owl", "ferret"), "not a class of the data; classes are 'cat', 'dog', 'owl'"),
        (("owl/0.png", "keep", "owl", "dog"), "choose keep or relabel"),
        (("cat/1.png", "drop", "cat", ""), "row 7: 'cat/1.png' was decided before in row 4"),
        (("cat/1.png", "keep", "cat", ""), "contradicts what was decided in row 4"),
        (("../photos/cat/2.png", "drop", "cat", ""), "is not in the data"),
    ],
)
def test_rows_that_do_not_fit_are_listed_and_nothing_is_written(
    tmp_path: Path, photos: Path, row: Row, message: str
) -> None:
    refuse(tmp_path, photos, [*FIRST, row], r"1 row of .*nothing was written:\n.*" + message)


def test_only_the_first_few_rows_are_listed(tmp_path: Path, photos: Path) -> None:
    rows: list[Row] = [(f"none/{i}.png", "drop", "", "") for i in range(9)]
    refuse(tmp_path, photos, rows, r"9 rows of (.|\n)*row 6(.|\n)*and 4 more")
    everything: list[Row] = [(name, "drop", "", "") for name in open_images(photos).names]
    refuse(tmp_path, photos, everything, "drops all 13 images")
    refuse(tmp_path, photos, [], "holds no decisions")


def test_files_that_are_not_decisions(tmp_path: Path, photos: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("path,label\ncat/0.png,cat\n")
    with pytest.raises(DecisionsError, match=r"lacks the columns 'decision', 'given_label', 'new_label'"):
        apply_decisions(path, tmp_path / "clean")
    path.write_text(",".join(HEADER) + "\ncat/0.png,drop\n")
    with pytest.raises(DecisionsError, match=r"row 2 .* does not have 5 cells"):
        apply_decisions(path, tmp_path / "clean")
    with pytest.raises(ImagesError, match="cannot read"):
        apply_decisions(tmp_path / "none.csv", tmp_path / "clean")


def test_the_source(tmp_path: Path, photos: Path) -> None:
    moved = tmp_path / "moved"
    decisions = decide(tmp_path / "d.csv", photos, FIRST)
    shutil.move(photos, moved)
    with pytest.raises(DecisionsError, match=r"no longer at .*--source"):
        apply_decisions(decisions, tmp_path / "clean")
    assert apply_decisions(decisions, tmp_path / "clean", source=moved).dropped == 1
    text = decisions.read_text()
    decisions.write_text(text + f"owl/0.png,drop,owl,,{moved}\n")
    with pytest.raises(DecisionsError, match="names several"):
        apply_decisions(decisions, tmp_path / "clean2")
    assert apply_decisions(decisions, tmp_path / "clean2", source=moved).dropped == 2
    decisions.write_text("path,decision,given_label,new_label\ncat/1.png,drop,cat,\n")
    with pytest.raises(DecisionsError, match="names none"):
        apply_decisions(decisions, tmp_path / "clean3")


def test_spreadsheets_may_have_saved_it_again(tmp_path: Path, photos: Path) -> None:
    decisions = decide(tmp_path / "d.csv", photos, FIRST)
    text = decisions.read_text().replace(",", ";").replace("drop", " Drop ")
    decisions.write_bytes(text.encode("utf-8-sig"))
    assert apply_decisions(decisions, tmp_path / "clean").dropped == 1


def test_where_a_copy_may_not_go(tmp_path: Path, photos: Path) -> None:
    decisions = decide(tmp_path / "d.csv", photos, FIRST)
    before = snapshot(photos)
    os.symlink(photos, tmp_path / "alias")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for target, message in (
        (photos, "lies in the original"),
        (photos / "clean", "lies in the original"),
        (tmp_path / "alias" / "cat" / "clean", "lies in the original"),
        (tmp_path / "full", "is not empty"),
        (tmp_path, "is not empty"),
        (tmp_path / "file", "is not a folder"),
    ):
        with pytest.raises(DecisionsError, match=message):
            apply_decisions(decisions, target)
    with pytest.raises(ImagesError, match="cannot write"):
        apply_decisions(decisions, tmp_path / "file" / "clean")
    assert snapshot(photos) == before
    (tmp_path / "empty").mkdir()
    apply_decisions(decisions, tmp_path / "empty")
    assert (tmp_path / "empty" / "dog" / "0.png").exists()
