"""Cleaned copies of manifests, arrays and data sets of other layouts."""

from __future__ import annotations

import csv
import gzip
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apply_cases import Row, decide, files_below, picture, save, snapshot

from sgoif.audit.apply import Applied, apply_decisions
from sgoif.images import open_images


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for c, name in enumerate(("cat", "dog", "owl")):
        for i in range(4):
            save(10 * c + i, root / name / f"{i}.png")
    save(90, root / "cat" / "deep" / "er" / "0.png")
    return root


ROWS = [("cat/0.png", "0", "a,b"), ("cat/1.png", "0", "=x"), ("dog/0.png", "1", ""), ("dog/1.png", "1", "猫")]


def test_a_csv_manifest_keeps_its_other_columns(tmp_path: Path, photos: Path) -> None:
    source = photos / "list.csv"
    with open(source, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["note", "path", "label"])
        writer.writerows([note, path, label] for path, label, note in ROWS)
        writer.writerow(["gone", "none.png", "1"])
        writer.writerow(["twice", "dog/0.png", "0"])
    before = snapshot(photos)
    rows: list[Row] = [("cat/0.png", "relabel", "0", "1"), ("cat/1.png", "drop", "0", "")]
    rows.append(("dog/0.png#row7", "relabel", "0", "1"))
    applied = apply_decisions(decide(tmp_path / "d.csv", source, rows), tmp_path / "clean")
    with open(tmp_path / "clean" / "manifest.csv", newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [
            ["note", "path", "label"],
            ["a,b", "images/cat/0.png", "1"],
            ["", "images/dog/0.png", "1"],
            ["猫", "images/dog/1.png", "1"],
            ["twice", "images/dog/0.png", "1"],
        ]
    assert files_below(tmp_path / "clean") == {f"images/{p}.png" for p in ("cat/0", "dog/0", "dog/1")} | {
        "manifest.csv"
    }
    assert snapshot(photos) == before
    assert len(applied.left_out) == 1
    assert "none.png" in applied.summary()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_copy_has_no_spaces_around_labels(kind: str, tmp_path: Path, photos: Path) -> None:
    paths, labels = [row[0] for row in ROWS], ["cat ", "cat", "dog", " dog"]
    source = photos / f"list.{kind}"
    if kind == "csv":
        source.write_text("path,label\n" + "".join(f"{p},{y}\n" for p, y in zip(paths, labels, strict=True)))
    else:
        parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        parquet.write_table(pyarrow.table({"path": paths, "label": labels}), source)
    rows: list[Row] = [("cat/0.png", "relabel", "cat", "dog"), ("cat/1.png", "keep", "cat", "")]
    applied = apply_decisions(decide(tmp_path / "d.csv", source, rows), tmp_path / "clean")
    assert applied.relabelled == {("cat", "dog"): 1}
    clean = open_images(tmp_path / "clean" / f"manifest.{kind}")
    assert [clean.class_names[y] for y in clean.labels] == ["dog", "cat", "dog", "dog"]
    assert not clean.notes


def test_a_parquet_manifest_keeps_its_types(tmp_path: Path, photos: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    label = pyarrow.array(["c", "c", "d", "d"]).dictionary_encode()
    numbers = pyarrow.array([1, 2, 3, 4], pyarrow.int16())
    table = pyarrow.table({"number": numbers, "label": label, "path": [row[0] for row in ROWS]})
    parquet.write_table(table, photos / "list.parquet")
    rows: list[Row] = [("cat/0.png", "relabel", "c", "d"), ("dog/0.png", "drop", "d", "")]
    apply_decisions(decide(tmp_path / "d.csv", photos / "list.parquet", rows), tmp_path / "clean")
    found = parquet.read_table(tmp_path / "clean" / "manifest.parquet")
    assert found.schema.types[:2] == table.schema.types[:2]
    assert found.to_pydict() == {
        "number": [1, 2, 4],
        "label": ["d", "c", "d"],
        "path": ["images/cat/0.png", "images/cat/1.png", "images/dog/1.png"],
    }
    assert len(open_images(tmp_path / "clean" / "manifest.parquet")) == 3


X = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)


Y = [0, 1, 2, 0, 1, 2]


ARRAY_ROWS: list[Row] = [("train/1", "relabel", "1", "2"), ("train/3", "drop", "0", "")]


def check_archive(clean: Path, applied: Applied, x: Any) -> None:
    with np.load(clean / "clean.npz", allow_pickle=False) as archive:
        assert np.array_equal(archive["x"], x[[0, 1, 2, 4, 5]])
        assert archive["x"].dtype == x.dtype
        assert [archive["class_names"][i] for i in archive["y"]] == ["0", "2", "2", "1", "2"]
        assert archive["names"].tolist() == [f"train/{i}" for i in (0, 1, 2, 4, 5)]
    assert (applied.kept, applied.dropped, applied.relabelled) == (4, 1, {("1", "2"): 1})
    again = open_images(clean / "clean.npz")
    assert again.names == [f"train/{i}" for i in (0, 1, 2, 4, 5)]
    assert again.class_names == ["0", "1", "2"]


@pytest.mark.parametrize("kind", ["bytes", "unit"])
def test_npz(tmp_path: Path, kind: str) -> None:
    x = X if kind == "bytes" else X.astype(np.float32) / 255
    np.savez(tmp_path / "a.npz", x=x, y=np.array(Y))
    decisions = decide(tmp_path / "d.csv", tmp_path / "a.npz", ARRAY_ROWS)
    check_archive(tmp_path / "clean", apply_decisions(decisions, tmp_path / "clean"), x)


def test_idx_and_cifar(tmp_path: Path) -> None:
    grey = X[:, 0]
    (tmp_path / "mnist").mkdir()
    for name, values in (("images-idx3", grey), ("labels-idx1", np.array(Y, np.uint8))):
        head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
        (tmp_path / "mnist" / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(head + values.tobytes()))
    decisions = decide(tmp_path / "d.csv", tmp_path / "mnist", ARRAY_ROWS)
    check_archive(tmp_path / "clean", apply_decisions(decisions, tmp_path / "clean"), grey)
    big = np.random.default_rng(1).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    (tmp_path / "cifar").mkdir()
    for i in range(5):
        rows = range(6) if i == 0 else range(0)
        data = b"".join(bytes([Y[r]]) + big[r].tobytes() for r in rows) or bytes(3073)
        (tmp_path / "cifar" / f"data_batch_{i + 1}.bin").write_bytes(data)
    rest: list[Row] = [(f"train/{i}", "drop", "0", "") for i in range(6, 10)]
    decisions = decide(tmp_path / "d.csv", tmp_path / "cifar", ARRAY_ROWS + rest)
    applied = apply_decisions(decisions, tmp_path / "clean2")
    with np.load(tmp_path / "clean2" / "clean.npz", allow_pickle=False) as archive:
        assert np.array_equal(archive["x"], big[[0, 1, 2, 4, 5]].transpose(0, 2, 3, 1))
    assert applied.dropped == 5


@pytest.mark.parametrize("uniform", [True, False])
def test_hugging_face(tmp_path: Path, uniform: bool) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    contents = []
    for i in range(6):
        target = io.BytesIO()
        picture(i, 8 if uniform else 8 + i).save(target, "PNG")
        contents.append(target.getvalue())
    contents[5] = b"broken"
    table = pyarrow.table({"image": contents, "label": ["../up", "b/c", "é", "../up", "b/c", "é"]})
    with pyarrow.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    rows: list[Row] = [("train/1", "relabel", "b/c", "é"), ("train/3", "drop", "../up", "")]
    decisions = decide(tmp_path / "d.csv", tmp_path / "a.arrow", rows)
    dry = apply_decisions(decisions, tmp_path / "clean", dry_run=True)
    applied = apply_decisions(decisions, tmp_path / "clean")
    assert dry.left_out == applied.left_out
    assert "'train/5'" in applied.left_out[0]
    assert (applied.kept, applied.dropped) == (3, 1)
    if uniform:
        with np.load(tmp_path / "clean" / "clean.npz", allow_pickle=False) as archive:
            assert np.array_equal(archive["x"], np.stack([np.asarray(picture(i)) for i in (0, 1, 2, 4)]))
            assert [archive["class_names"][i] for i in archive["y"]] == ["../up", "é", "é", "b/c"]
    else:
        found = {"_up/train-0.png", "é/train-1.png", "é/train-2.png", "b_c/train-4.png"}
        assert files_below(tmp_path / "clean") == found
        assert (tmp_path / "clean" / "b_c" / "train-4.png").read_bytes() == contents[4]


def test_a_manifest_loses_the_rows_of_unreadable_files(tmp_path: Path, photos: Path) -> None:
    (photos / "list.csv").write_text("path,label\ncat/0.png,c\ncat/1.png,c\ndog/0.png,d\ndog/1.png,d\n")
    (photos / "dog" / "0.png").write_bytes(b"not an image")
    rows: list[Row] = [("cat/0.png", "relabel", "c", "d")]
    applied = apply_decisions(decide(tmp_path / "d.csv", photos / "list.csv", rows), tmp_path / "clean")
    table = (tmp_path / "clean" / "manifest.csv").read_text().split()
    assert table == ["path,label", "images/cat/0.png,d", "images/cat/1.png,c", "images/dog/1.png,d"]
    assert len(applied.left_out) == 1


def test_arrays_lose_images_that_are_not_numbers(tmp_path: Path) -> None:
    x = X.astype(np.float32) / 255
    x[5, 0, 0, 0] = np.nan
    np.savez(tmp_path / "a.npz", x=x, y=np.array(Y))
    applied = apply_decisions(decide(tmp_path / "d.csv", tmp_path / "a.npz", ARRAY_ROWS), tmp_path / "clean")
    with np.load(tmp_path / "clean" / "clean.npz", allow_pickle=False) as archive:
        assert archive["names"].tolist() == [f"train/{i}" for i in (0, 1, 2, 4)]
    assert "'train/5'" in applied.left_out[0]
