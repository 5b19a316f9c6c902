"""CIFAR, idx and numpy archives; none of them may run anything."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sgoif.images import ImagesError, open_images
from sgoif.images.sources import npz, spill

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(0)


def cifar(count: int, classes: int) -> tuple[Array, list[int]]:
    return RANDOM.integers(0, 256, (count, 3072), dtype=np.uint8), [int(i) for i in np.arange(count) % classes]


def upright(row: Array) -> Array:
    return row.reshape(3, 32, 32).transpose(1, 2, 0)


def test_cifar_10_binary(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    data, labels = cifar(25, 10)
    for part in range(5):
        rows = slice(5 * part, 5 * part + 5)
        records = np.concatenate([np.array(labels[rows], np.uint8)[:, None], data[rows]], axis=1)
        records.tofile(folder / f"data_batch_{part + 1}.bin")
    records[:3].tofile(folder / "test_batch.bin")
    for path in (folder, tmp_path):
        collection = open_images(path)
        assert collection.layout == "cifar"
        assert collection.names[:2] == ["train/0", "train/1"]
        assert collection.labels.tolist() == labels
        assert collection.class_names == [str(i) for i in range(10)]
        assert np.array_equal(np.asarray(collection.image(13)), upright(data[13]))
        assert collection.file(0) is None
    (folder / "batches.meta.txt").write_text("\n".join(f"class {i}" for i in range(10)) + "\n\n")
    assert open_images(folder).class_names[3] == "class 3"
    test = open_images(folder, split="test")
    assert test.names == ["test/0", "test/1", "test/2"]
    assert len(test.class_names) == 3
    assert any("7 classes without images" in note for note in test.notes)
    one = open_images(folder / "data_batch_2.bin")
    assert one.names[0] == "data_batch_2/0"
    assert np.array_equal(np.asarray(one.image(1)), upright(data[6]))
    digest = open_images(folder).digest()
    changed = np.fromfile(folder / "data_batch_3.bin", np.uint8)
    changed[100] ^= 1
    changed.tofile(folder / "data_batch_3.bin")
    assert open_images(folder).digest() != digest
    (folder / "data_batch_4.bin").write_bytes(b"\0" * 3000)
    with pytest.raises(ImagesError, match="not a whole number of records"):
        open_images(folder)
    (folder / "data_batch_4.bin").write_bytes(b"\xff" * 3073)
    with pytest.raises(ImagesError, match="labels outside 0 to 9"):
        open_images(folder)
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(ImagesError, match=r"lacks 'data_batch_4\.bin'"):
        open_images(folder)


def test_cifar_100_binary_uses_fine_labels(tmp_path: Path) -> None:
    data, labels = cifar(30, 100)
    coarse = np.full((30, 1), 7, np.uint8)
    records = np.concatenate([coarse, np.array(labels, np.uint8)[:, None], data], axis=1)
    for name in ("train.bin", "test.bin"):
        records.tofile(tmp_path / name)
    (tmp_path / "fine_label_names.txt").write_text("\n".join(f"fine {i}" for i in range(100)))
    for path in (tmp_path, tmp_path / "train.bin"):
        collection = open_images(path)
        assert collection.class_names == [f"fine {i}" for i in range(30)]
        assert np.array_equal(np.asarray(collection.image(29)), upright(data[29]))


@pytest.mark.parametrize("protocol", range(6))
def test_cifar_python_in_every_pickle_protocol(tmp_path: Path, protocol: int) -> None:
    data, labels = cifar(10, 10)
    for part in range(5):
        rows = slice(2 * part, 2 * part + 2)
        content = {b"data": data[rows], b"labels": labels[rows], b"batch_label": b"x", b"filenames": [b"a", b"b"]}
        (tmp_path / f"data_batch_{part + 1}").write_bytes(pickle.dumps(content, protocol))
    names = {"label_names": [f"class {i}" for i in range(10)], "num_vis": 3072}
    (tmp_path / "batches.meta").write_bytes(pickle.dumps(names, protocol))
    collection = open_images(tmp_path)
    assert collection.class_names == names["label_names"]
    assert collection.labels.tolist() == labels
    assert np.array_equal(np.asarray(collection.image(7)), upright(data[7]))


def test_cifar_100_python_with_arrays_in_columns(tmp_path: Path) -> None:
    data, labels = cifar(12, 100)
    content = {"data": np.asfortranarray(data), "fine_labels": labels, "coarse_labels": [0] * 12}
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(pickle.dumps(content, 2))
    (tmp_path / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"f{i}" for i in range(100)]}))
    collection = open_images(tmp_path)
    assert collection.class_names == [f"f{i}" for i in range(12)]
    assert np.array_equal(np.asarray(collection.image(11)), upright(data[11]))


class Attack:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("place", ["data_batch_1", "batches.meta"])
def test_a_malicious_pickle_does_not_run(tmp_path: Path, protocol: int, place: str) -> None:
    folder, proof = tmp_path / "cifar-10-batches-py", tmp_path / "proof"
    folder.mkdir()
    data, labels = cifar(2, 10)
    for part in range(5):
        (folder / f"data_batch_{part + 1}").write_bytes(pickle.dumps({"data": data, "labels": labels}))
    for attack in (
        Attack(os.mkdir, str(proof)),
        Attack(eval, f"__import__('os').mkdir({str(proof)!r})"),
        Attack(getattr, {}, "clear"),
        Attack(np.load, str(proof)),
        Attack(np.array, [1]),
    ):
        (folder / place).write_bytes(pickle.dumps({"data": attack}, protocol))
        with pytest.raises(ImagesError, match=r"asks to run .* It was not run"):
            open_images(folder)
        assert not proof.exists()


BAD_PICKLES = {
    "empty": b"",
    "garbage": b"garbage",
    "a list": pickle.dumps([1, 2]),
    "short rows": pickle.dumps({"data": np.zeros((2, 5), np.uint8), "labels": [0, 1]}),
    "floats": pickle.dumps({"data": np.zeros((2, 3072)), "labels": [0, 1]}),
    "no data": pickle.dumps({"labels": [0, 1]}),
    "labels that are none": pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": ["x", None]}),
    "too few labels": pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}),
}


@pytest.mark.parametrize("content", BAD_PICKLES.values(), ids=BAD_PICKLES)
def test_damaged_python_files(tmp_path: Path, content: bytes) -> None:
    for part in range(5):
        (tmp_path / f"data_batch_{part + 1}").write_bytes(content)
    with pytest.raises(ImagesError, match="data_batch_1"):
        open_images(tmp_path)


def idx(values: Array) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("place", [".", "raw", "MNIST/raw"])
def test_idx(tmp_path: Path, packed: bool, place: str) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = RANDOM.integers(0, 256, (12, 28, 20), dtype=np.uint8), np.arange(12, dtype=np.uint8) % 3
    for stem, count in (("train", 12), ("t10k", 6)):
        for name, values in ((f"{stem}-images-idx3-ubyte", images), (f"{stem}-labels-idx1-ubyte", labels)):
            content = idx(values[:count])
            (folder / f"{name}{'.gz' * packed}").write_bytes(gzip.compress(content) if packed else content)
    collection = open_images(tmp_path)
    assert (collection.layout, collection.split) == ("idx", "train")
    assert collection.names[11] == "train/11"
    assert collection.labels.tolist() == labels.tolist()
    assert np.array_equal(np.asarray(collection.image(5)), images[5])
    assert len(open_images(tmp_path, split="test")) == 6
    assert len(open_images(folder / f"t10k-images-idx3-ubyte{'.gz' * packed}")) == 6


def test_damaged_idx(tmp_path: Path) -> None:
    images, labels = np.zeros((4, 8, 8), np.uint8), np.arange(4, dtype=np.uint8)
    file, beside = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"
    file.write_bytes(idx(images))
    with pytest.raises(ImagesError, match="no labels beside it"):
        open_images(tmp_path)
    beside.write_bytes(idx(labels[:3]))
    with pytest.raises(ImagesError, match="4 images but there are 3 labels"):
        open_images(tmp_path)
    beside.write_bytes(idx(labels))
    for content, message in ((idx(images)[:-1], "cut off"), (b"\x00\x01", "start like"), (b"", "start like")):
        file.write_bytes(content)
        with pytest.raises(ImagesError, match=message):
            open_images(tmp_path)
    file.unlink()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images))[:-12])
    with pytest.raises(ImagesError, match="cut off"):
        open_images(tmp_path)


SHAPES = {
    "HW": RANDOM.integers(0, 256, (6, 10, 9), dtype=np.uint8),
    "HWC": RANDOM.integers(0, 256, (6, 10, 9, 3), dtype=np.uint8),
    "HW1": RANDOM.integers(0, 256, (6, 10, 9, 1), dtype=np.uint8),
    "CHW": RANDOM.integers(0, 256, (6, 3, 10, 9), dtype=np.uint8),
}


def seen(values: Array) -> Array:
    if values.ndim == 3 and values.shape[0] == 3:
        return values.transpose(1, 2, 0)
    return values[..., 0] if values.ndim == 3 and values.shape[-1] == 1 else values


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["bytes", "unit", "float", "int"])
@pytest.mark.parametrize("packed", [False, True])
def test_npz_shapes_and_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, kind: str, packed: bool
) -> None:
    monkeypatch.setattr(spill, "IN_MEMORY", 1000)  # so that unpacked arrays go through a file
    monkeypatch.setattr(npz, "MAPPED_FROM", 1000)  # and others are mapped
    x = SHAPES[shape]
    stored = {"bytes": x, "unit": x.astype(np.float32) / 255, "float": x.astype(np.float64), "int": x.astype(np.int32)}
    (np.savez_compressed if packed else np.savez)(tmp_path / "a.npz", x=stored[kind], y=np.arange(6) % 2)
    collection = open_images(tmp_path / "a.npz")
    assert collection.names == [f"train/{i}" for i in range(6)]
    for i in (0, 5):
        assert np.array_equal(np.asarray(collection.image(i)), seen(x[i]))


def test_npz_names_classes_splits_and_text(tmp_path: Path) -> None:
    x = SHAPES["HWC"]
    path = tmp_path / "a.npz"
    np.savez(
        path,
        images=np.asfortranarray(x),
        labels=np.array(["b", "a"] * 3),
        paths=np.array(["<i>", "x", "x", "d", "e", "f"]),
    )
    collection = open_images(path)
    assert collection.names == ["<i>", "x", "x#2", "d", "e", "f"]
    assert collection.class_names == ["a", "b"]
    assert np.array_equal(np.asarray(collection.image(4)), x[4])
    np.savez(
        path, data=x, targets=np.array([[2], [0], [2], [0], [5], [2]]), class_names=np.array(["zero", "one", "two"])
    )
    collection = open_images(path)
    assert collection.class_names == ["zero", "two"]
    assert collection.labels.tolist() == [1, 0, 1, 0, 1]
    assert [entry.name for entry in collection.skipped] == ["train/4"]
    np.savez(path, x_train=x, y_train=np.eye(3)[[0, 1, 2, 0, 1, 2]], x_test=x[:2], y_test=np.array([0, 1]))
    assert open_images(path).labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert open_images(path, split="test").names == ["test/0", "test/1"]
    np.savez(path, pics=x, truth=np.arange(6))
    assert len(open_images(path, image_column="pics", label_column="truth")) == 6


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((4, 8, 8), np.uint8)}, "no labels under y or labels.*--label-column"),
        ({"y": np.zeros(4)}, "no images under x or images"),
        ({"x": np.zeros((4, 8), np.uint8), "y": np.arange(4)}, r"shape \[4, 8\]"),
        ({"x": np.zeros((4, 8, 8, 5), np.uint8), "y": np.arange(4)}, "with 1, 3 or 4 channels"),
        ({"x": np.linspace(-1, 1, 256).reshape(4, 8, 8), "y": np.arange(4)}, "from -1 to 1; expected are 0 to 1"),
        ({"x": np.zeros((4, 8, 8), np.uint8), "y": np.arange(3)}, "4 images in 'x' and 3 labels"),
        ({"x": np.zeros((4, 8, 8), np.uint8), "y": np.zeros((4, 3))}, "one number or text per image"),
        ({"x": np.zeros((4, 8, 8), np.uint8), "y": np.array([1, "a", None, 2], dtype=object)}, "Python objects"),
        ({"x": np.array(["a"] * 4).reshape(4, 1, 1), "y": np.arange(4)}, "not numbers"),
        ({"x": np.zeros((4, 0, 8), np.uint8), "y": np.arange(4)}, r"is empty: it has the shape \[4, 0, 8\]"),
        ({"x": np.zeros((0, 8, 8, 3), np.uint8), "y": np.arange(0)}, r"is empty: it has the shape \[0, 8, 8, 3\]"),
        ({}, "is empty: there is no array in it"),
    ],
)
def test_npz_mistakes(tmp_path: Path, arrays: dict[str, Array], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ImagesError, match=message):
        open_images(tmp_path / "a.npz")


def test_npz_damage_and_pixels_that_are_no_numbers(tmp_path: Path) -> None:
    x = SHAPES["HW"].astype(np.float32) / 255
    x[2, 0, 0] = np.nan
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(6) % 2)
    with pytest.raises(ImagesError, match=r"'train/2': some pixels are infinite or not numbers"):
        open_images(tmp_path / "a.npz").image(2)
    whole = (tmp_path / "a.npz").read_bytes()
    for content in (whole[:200], b"", b"PK\x05\x06" + b"\0" * 18):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(ImagesError, match=r"a\.npz"):
            open_images(tmp_path / "a.npz")


def test_rgba_arrays_lie_on_white(tmp_path: Path) -> None:
    x = np.zeros((2, 4, 4, 4), np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(2))
    assert np.asarray(open_images(tmp_path / "a.npz").image(0)).min() == 255


def test_a_large_member_of_an_archive_is_mapped_not_read(tmp_path: Path) -> None:
    large = RANDOM.integers(0, 256, (6, 250, 250, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=large, y=np.arange(6) % 2)
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        found = npz._member(archive, tmp_path / "a.npz", "x")
    assert isinstance(found, np.memmap)
    assert np.array_equal(found, large)
    assert Image.fromarray(found[0]).size == (250, 250)
