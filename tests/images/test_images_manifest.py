"""Tables of paths and labels."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from image_cases import class_folder, picture, same_pixels, save

from sgoif.core.score_table import ScoreTable
from sgoif.images import ImagesError, open_images
from sgoif.images.sources.csv_table import read_csv


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return class_folder(tmp_path / "data")


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


ROWS = [("cat/0.png", "cat"), ("cat/1.png", "cat"), ("dog/0.png", "dog"), ("dog/1.png", "cat")]


@pytest.mark.parametrize("separator", [",", ";"])
def test_spaces_after_separators(root: Path, separator: str) -> None:
    lines = ["label, path, note", 'a, "cat/0.png", "x, y"', '"b", dog/0.png,  z']
    found = open_images(write(root / "list.csv", "\n".join(lines).replace(",", separator)))
    assert found.names == ["cat/0.png", "dog/0.png"]
    assert found.class_names == ["a", "b"]
    kept = read_csv(write(root / "list.csv", f"path{separator}label\ncat/0.png{separator} a\n")).rows
    assert kept == [["cat/0.png", " a"]], "a space is part of a cell where the header has none"


def test_spaces_around_labels_and_paths_make_no_classes_and_hide_no_files(root: Path) -> None:
    found = open_images(write(root / "list.csv", "path,label\ncat/0.png,a\ncat/1.png ,a \ndog/0.png, b\ndog/1.png,b\n"))
    assert found.class_names == ["a", "b"]
    assert found.names == ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png"]
    assert found.notes == ["spaces around 2 labels do not count: 'a ', ' b'"]
    assert not open_images(write(root / "list.csv", "path,label\ncat/0.png,a b\ndog/0.png,b\n")).notes


def test_a_split_column_is_mentioned_and_a_split_that_is_not_there_is_refused(root: Path) -> None:
    lines = ["path,label,split", "cat/0.png,a,train", "dog/0.png,b,train ", "cat/1.png,a,val", "dog/1.png,b,val"]
    path = write(root / "list.csv", "\n".join(lines))
    everything = open_images(path)
    assert len(everything) == 4
    assert everything.notes == ["all splits are read: 'train', 'val' (choose one with --split)"]
    train = open_images(path, split="train")
    assert (train.names, train.notes) == (["cat/0.png", "dog/0.png"], [])
    with pytest.raises(ImagesError, match="has no split 'tain'; it has 'train', 'val'"):
        open_images(path, split="tain")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_separators_and_encodings(root: Path, separator: str, encoding: str) -> None:
    lines = ["Filename,extra,Category", *(f"{path},1,{label}" for path, label in ROWS)]
    path = write(root / "list.csv", "\r\n".join(lines).replace(",", separator), encoding)
    collection = open_images(path)
    assert collection.names == [path for path, _ in ROWS]
    assert [collection.class_names[i] for i in collection.labels] == [label for _, label in ROWS]
    assert collection.root == root
    assert same_pixels(collection.image(2), picture(100))
    assert collection.manifest is not None
    assert (collection.manifest.image_column, collection.manifest.label_column) == ("Filename", "Category")


def test_tsv_and_named_columns(root: Path) -> None:
    path = write(root / "list.tsv", "where\twhat\n" + "\n".join("\t".join(row) for row in ROWS))
    with pytest.raises(ImagesError, match=r"its columns are 'where', 'what'.*--image-column"):
        open_images(path)
    with pytest.raises(ImagesError, match=r"hold the labels.*--label-column"):
        open_images(path, image_column="where")
    with pytest.raises(ImagesError, match=r"no column 'wo'; its columns are 'where', 'what'"):
        open_images(path, image_column="wo")
    with pytest.raises(ImagesError, match="cannot both come"):
        open_images(path, image_column="what", label_column="what")
    assert len(open_images(path, image_column="where", label_column="what")) == 4


def test_rows_that_cannot_be_used_are_reported(root: Path, tmp_path: Path) -> None:
    outside = save(picture(0), tmp_path / "secret.png")
    os.symlink(outside, root / "link.png")
    lines = ["path,label", *(",".join(row) for row in ROWS)]
    lines += [
        "../secret.png,cat",
        f"{outside},cat",
        "link.png,cat",
        "none.png,cat",
        "cat/2.png,",
        ",cat",
        "cat,cat",
        "x",
    ]
    collection = open_images(write(root / "list.csv", "\n".join(lines)))
    assert len(collection) == 4
    reasons = {entry.name: entry.reason for entry in collection.skipped}
    assert len(reasons) == 8
    for name in ("../secret.png", str(outside), "link.png"):
        assert "outside" in reasons[name]
        assert "--root" in reasons[name]
    assert "no such file" in reasons["none.png"]
    assert "no label" in reasons["cat/2.png"]
    assert "names no file (row 11)" in reasons["row 11"]
    assert "not a file" in reasons["cat"]
    assert "no label" in reasons["x"]


def test_root_widens_and_moves_the_search(root: Path, tmp_path: Path) -> None:
    save(picture(0), tmp_path / "other.png")
    table = write(root / "list.csv", f"path,label\ndata/cat/0.png,a\n{tmp_path}/other.png,b\n")
    with pytest.raises(ImagesError, match=r"none of the 2 rows.*--root"):
        open_images(table)
    collection = open_images(table, root=tmp_path)
    assert collection.names == ["data/cat/0.png", "other.png"]
    with pytest.raises(ImagesError, match="is not a folder"):
        open_images(table, root=tmp_path / "missing")


def test_a_root_behind_a_link(root: Path, tmp_path: Path) -> None:
    os.symlink(root, tmp_path / "alias")
    table = write(root / "list.csv", f"path,label\n{root}/cat/0.png,a\ndog/0.png,b\n")
    collection = open_images(table, root=tmp_path / "alias")
    assert collection.names == ["cat/0.png", "dog/0.png"]
    assert collection.image(0).size == (16, 12)


def test_one_file_under_two_labels_stays_twice(root: Path) -> None:
    collection = open_images(write(root / "list.csv", "path,label\ncat/0.png,a\n./cat/0.png,b\ndog/0.png,a\n"))
    assert collection.names == ["cat/0.png", "cat/0.png#row3", "dog/0.png"]
    assert collection.labels.tolist() == [0, 1, 0]


def test_paths_written_on_windows(root: Path) -> None:
    assert open_images(write(root / "l.csv", "path,label\ncat\\0.png,a\ndog\\0.png,b\n")).names[0] == "cat/0.png"


def test_the_librarys_own_tables_are_read_back(root: Path) -> None:
    strange = ["=cat/0.png", "'cat/1.png", "@x.png", "a\nb.png", 'q"u.png', "猫.png", "-1.png"]
    for i, name in enumerate(strange):
        save(picture(i), root / name)
    labels = [("=a", "'b")[i % 2] for i in range(len(strange))]
    columns = {"is_label_issue": np.zeros(len(strange), dtype=bool), "label_score": np.zeros(len(strange))}
    table = ScoreTable({"path": np.array(strange), "given_label": np.array(labels), **columns})
    table.to_csv(root / "own.csv")
    collection = open_images(root / "own.csv")
    assert collection.names == strange
    assert [collection.class_names[i] for i in collection.labels] == labels


def test_apostrophes_in_tables_of_others_are_part_of_the_text(root: Path) -> None:
    labels = ["'tick", "'=x", "''two", "a;'b", "'"]
    rows = [["path", "label"]]
    for i, label in enumerate(labels):
        save(picture(i), root / f"'{i}.png")
        rows.append([f"'{i}.png", label])
    with open(root / "theirs.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    collection = open_images(root / "theirs.csv")
    assert collection.names == [row[0] for row in rows[1:]]
    assert [collection.class_names[i] for i in collection.labels] == labels


def test_parquet_with_numbers_and_a_split(root: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table(
        {
            "image_path": [row[0] for row in ROWS] + ["cat/2.png"],
            "target": pyarrow.array([10.0, 2.0, 10.0, None, 2.0]),
            "split": ["train", "train", "test", "train", "test"],
        }
    )
    parquet.write_table(table, root / "list.parquet")
    collection = open_images(root / "list.parquet")
    assert collection.class_names == ["2", "10"]
    assert collection.labels.tolist() == [1, 0, 1, 0]
    assert [entry.name for entry in collection.skipped] == ["dog/1.png"]
    assert open_images(root / "list.parquet", split="test").names == ["dog/0.png", "cat/2.png"]
    (root / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ImagesError, match="not a readable Parquet"):
        open_images(root / "bad.parquet")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"path,label\n\xff\xfe,1\n", "not UTF-8"),
        (b"path,path,label\n", "names a column twice"),
        (b"path,label\n", "no readable image"),
        (b'path,label\n"' + b"x" * 1_100_000 + b'",1\n', "not a readable CSV"),
    ],
)
def test_damaged_tables(root: Path, content: bytes, message: str) -> None:
    (root / "list.csv").write_bytes(content)
    with pytest.raises(ImagesError, match=message):
        open_images(root / "list.csv")
