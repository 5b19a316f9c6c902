"""Image files that once ended a reader with a stack trace, a hang or too much memory."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sgoif.commands.unlearn.feature_source import read_arrays
from sgoif.core.serialization import load_state
from sgoif.errors import SettingError, StateError
from sgoif.images import ImagesError, open_images, open_pixels
from sgoif_bench.faults.readers import _cifar_python, _idx, _images, _npz, _prepared, _saved_to_disk


def array(values: Any) -> bytes:
    target = io.BytesIO()
    np.save(target, values)
    return target.getvalue()


def archive(path: Path, packing: int = zipfile.ZIP_STORED, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", packing) as file:
        for name, content in entries.items():
            file.writestr(f"{name}.npy", content)
    return path


IMAGES, LABELS = array(np.zeros((4, 8, 8), np.uint8)), array(np.arange(4))


HEAD = "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 8, 8), }"


def with_head(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + text.ljust(117).encode() + b"\n" + bytes(256)


@pytest.mark.parametrize(
    "entries",
    [
        {"x": with_head(HEAD.replace(", }", "")), "y": LABELS},
        {"x": with_head(HEAD.replace("(4", "(-4")), "y": LABELS},
        {"x": with_head(HEAD.replace("(4", "(4" + 30 * "9")), "y": LABELS},
        {"x": with_head("(" * 60), "y": LABELS},
        {"x": with_head(HEAD.replace("'|u1'", "'i4,('")), "y": LABELS},
        {"x": IMAGES, "y": LABELS, "class_names": array(np.array(["a"])).replace(b"a\0\0\0", b"\xff\xff\xff\xff")},
    ],
)
def test_arrays_with_heads_and_texts_that_are_none(entries: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(ImagesError, match="not a readable numpy archive"):
        open_images(archive(tmp_path / "set.npz", **entries))


def test_an_array_larger_than_its_entry_is_not_mapped(tmp_path: Path) -> None:
    """It would show other parts of the file as pixels."""
    whole = array(np.zeros((1200, 32, 32), np.uint8))
    entries = {"x": whole[:-4096], "y": array(np.arange(1200) % 3), "z": bytes(8192)}
    with pytest.raises(ImagesError, match="instead of"):
        open_images(archive(tmp_path / "set.npz", **entries))
    assert len(open_images(archive(tmp_path / "whole.npz", **{**entries, "x": whole}))) == 1200


def bomb(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", IMAGES)
        file.writestr("y.npy", LABELS)
        file.filelist[0].file_size = 2**31
    return path


def test_bombs_are_refused_before_they_go_off(tmp_path: Path) -> None:
    with pytest.raises(ImagesError, match="would unpack to"):
        open_images(bomb(tmp_path / "set.npz"))
    with pytest.raises(SettingError, match="would unpack to"):
        read_arrays(bomb(tmp_path / "features.npz"))
    with pytest.raises(StateError, match="would unpack to"):
        load_state(bomb(tmp_path / "state.npz"))
    _idx(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    packed = gzip.compress(struct.pack(">4I", 0x803, 2**22, 32, 32))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(packed)
    with pytest.raises(ImagesError, match="would unpack to"):
        open_images(tmp_path, layout="idx")


def test_sets_that_compress_well_are_still_read(tmp_path: Path) -> None:
    images = np.zeros((3000, 28, 28), np.uint8)
    np.savez_compressed(tmp_path / "set.npz", x=images, y=np.arange(3000) % 2)
    assert images.nbytes > 300 * (tmp_path / "set.npz").stat().st_size
    assert len(open_images(tmp_path / "set.npz")) == 3000


# --- pickles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "not the dictionary"),
        (b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".", "damaged"),
        (b"\x80\x04})\x94" + b"".join(bytes([104, n, 104, n]) + b"\x86\x94" for n in range(60)) + b"Ns.", "not text"),
        (b"\x80\x02}(K\x01K\x02u.", "not text"),
        (b"\x80\x02(K\x01K\x02d.", "not text"),
        (b"\x80\x04\x8f.", "damaged"),
        (pickle.dumps({b"data": np.zeros((0, 3072), np.uint8), b"labels": []}, 4), "holds no image"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [[0]]}, 2), "does not hold the arrays"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [2**70]}, 2), "labels outside"),
    ],
)
def test_pickles_that_attack_their_reader(content: bytes, reason: str, tmp_path: Path) -> None:
    _cifar_python(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(content)
    with pytest.raises(ImagesError, match=reason):
        open_images(tmp_path)


def test_an_array_whose_shape_is_text_is_not_multiplied(tmp_path: Path) -> None:
    _cifar_python(tmp_path)
    sound = (tmp_path / "data_batch_1").read_bytes()
    at = sound.index(b"K\x06M\x00\x0c\x86")
    (tmp_path / "data_batch_1").write_bytes(sound[:at] + b"U\x01xJ\xff\xff\xff\x7f\x86" + sound[at + 6 :])
    with pytest.raises(ImagesError, match="whole numbers"):
        open_images(tmp_path)


def test_class_names_in_lists_of_lists_are_not_spelt_out(tmp_path: Path) -> None:
    _cifar_python(tmp_path)
    nested: list[Any] = ["x"]
    for _ in range(60):
        nested = [nested, nested]
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({b"label_names": nested * 5}, 2))
    assert open_images(tmp_path).class_names == ["0", "1", "2"]


# --- tables ---------------------------------------------------------------------------------------------------------


def test_cells_that_are_no_text_and_no_time(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    _images(tmp_path)
    broken = pyarrow.array([b"\xff", b"\xed\xa0\x80"]).view(pyarrow.string())
    stamps = pyarrow.array([1, 2**62]).view(pyarrow.timestamp("us"))
    for name, cells in (("path", broken), ("label", broken), ("label", stamps)):
        columns = {"path": pyarrow.array(["class0/0.png", "class1/1.png"]), "label": pyarrow.array(["a", "b"])}
        pyarrow.parquet.write_table(pyarrow.table({**columns, name: cells}), tmp_path / "list.parquet")
        with pytest.raises(ImagesError, match="Parquet"):
            open_images(tmp_path / "list.parquet")
        held = pyarrow.table({"image": [b"x", b"y"], "label": cells})
        pyarrow.parquet.write_table(held, tmp_path / "images.parquet")
        with pytest.raises(ImagesError, match="cannot be read"):
            open_images(tmp_path / "images.parquet")


def test_a_table_of_a_billion_equal_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("sgoif.images.sources.base.MANY_ROWS", 1000)
    column = pyarrow.array(["class0/0.png"]).dictionary_encode().take(pyarrow.array(np.zeros(200_000, np.int64)))
    pyarrow.parquet.write_table(pyarrow.table({"path": column, "label": column}), tmp_path / "list.parquet")
    with pytest.raises(ImagesError, match="200,000 rows"):
        open_images(tmp_path / "list.parquet")


def test_labels_that_are_no_class_numbers_are_left_out(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    kind = {"_type": "ClassLabel", "names": ["a", "b"]}
    about = {b"huggingface": json.dumps({"info": {"features": {"label": kind}}}).encode()}
    odd = [pyarrow.array([float("inf"), float("nan"), 0.0, 1.0]), pyarrow.array([b"\xff", None, b"0", b"1"])]
    for cells, kept in zip(odd, (2, 0), strict=True):
        table = pyarrow.table({"image": [b"x"] * 4, "label": cells}).replace_schema_metadata(about)
        pyarrow.parquet.write_table(table, tmp_path / "images.parquet")
        if kept:
            assert len(open_images(tmp_path / "images.parquet")) == kept
        else:
            with pytest.raises(ImagesError, match="none of the 2 classes"):
                open_images(tmp_path / "images.parquet")


def test_images_without_pixels(tmp_path: Path) -> None:
    _idx(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    content = struct.pack(">4I", 0x803, 6, 2**32 - 1, 0)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
    with pytest.raises(ImagesError, match="no pixels"):
        open_images(tmp_path)


def test_a_split_does_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "secret").mkdir()
    _saved_to_disk(tmp_path / "secret")
    (tmp_path / "set").mkdir()
    for splits in (["../secret"], [".."], [3], 3, {"train": 1}):
        (tmp_path / "set" / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
        with pytest.raises(ImagesError, match="lists no split"):
            open_images(tmp_path / "set")


@pytest.mark.parametrize("files", [True, 5, "data", {"a": 1}])
def test_a_list_of_files_that_is_none(files: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    _saved_to_disk(tmp_path)
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": files}))
    assert len(open_images(tmp_path)) == 6


# --- records --------------------------------------------------------------------------------------------------------

DEEP = "[" * 20_000


@pytest.mark.parametrize(
    "change", [{"labels": [1e999]}, {"thumbnails": {"lengths": [1e999], "type": ""}}, {"bytes": 3}]
)
def test_prepared_images_with_odd_numbers(change: dict[str, Any], tmp_path: Path) -> None:
    _prepared(tmp_path)
    record = tmp_path / "cache" / "images.json"
    sound = json.loads(record.read_text())
    record.write_text(json.dumps({**sound, **change}))
    with pytest.raises(ImagesError, match="complete set"):
        open_pixels(tmp_path / "cache")
    record.write_text(DEEP)
    with pytest.raises(ImagesError, match="complete set"):
        open_pixels(tmp_path / "cache")


def test_npz_sets_are_still_mapped_and_unpacked(tmp_path: Path) -> None:
    for packed in (False, True):
        _npz(tmp_path, packed=packed)
        assert open_images(tmp_path / "set.npz").class_names == ["a", "b", "c"]


def test_a_row_group_with_fewer_rows_than_its_head_says(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    from sgoif.images.errors import UnreadableImageError
    from sgoif.images.sources.arrow_rows import Table

    parquet.write_table(pyarrow.table({"image": [b"1", b"2", b"3"]}), tmp_path / "list.parquet")
    table = Table([tmp_path / "list.parquet"])
    assert table.column("image") == [b"1", b"2", b"3"]
    table._starts = np.array([0, 5])
    with pytest.raises(UnreadableImageError, match="damaged"):
        table.cell(4, "image")
    with pytest.raises(ImagesError, match="has 3 of 5 rows"):
        table.column("image")
