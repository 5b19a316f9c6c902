"""Data sets by name, each written in miniature in the layout of its publisher."""

from __future__ import annotations

import gzip
import pickle
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from dataset_cases import SIDE, Pixels, opened_below, picture, pixels, quiet, write

from sgoif.errors import MissingExtraError, SettingError
from sgoif_bench.labels.datasets import NAMES, LabelledData, load
from sgoif_bench.labels.datasets.cifar import CIFAR100_CLASSES, CIFAR100_SUPERCLASSES, FAMILIES
from sgoif_bench.noise import CIFAR10_CLASSES

COUNT = 12


# CIFAR


def cifar_records(seed: int, classes: int) -> tuple[Pixels, Pixels]:
    labels = (np.arange(COUNT, dtype=np.uint8) * 7 + seed) % classes
    return labels.astype(np.uint8), pixels(seed, COUNT, 3, 32, 32)


def write_binary(root: Path, classes: int) -> None:
    if classes == 10:
        files = {f"cifar-10-batches-bin/data_batch_{n}.bin": n for n in range(1, 6)}
        files["cifar-10-batches-bin/test_batch.bin"] = 6
    else:
        files = {"cifar-100-binary/train.bin": 1, "cifar-100-binary/test.bin": 6}
    for name, seed in files.items():
        labels, images = cifar_records(seed, classes)
        coarse = [] if classes == 10 else [np.array(CIFAR100_SUPERCLASSES, dtype=np.uint8)[labels][:, None]]
        write(root / name, np.concatenate([*coarse, labels[:, None], images.reshape(COUNT, -1)], axis=1).tobytes())


def write_python(root: Path, classes: int) -> None:
    if classes == 10:
        files = {f"cifar-10-batches-py/data_batch_{n}": n for n in range(1, 6)}
        files["cifar-10-batches-py/test_batch"] = 6
    else:
        files = {"cifar-100-python/train": 1, "cifar-100-python/test": 6}
        write(root / "cifar-100-python/meta", pickle.dumps({b"fine_label_names": [b"?"] * 100}, protocol=2))
    for name, seed in files.items():
        labels, images = cifar_records(seed, classes)
        key = b"labels" if classes == 10 else b"fine_labels"
        write(root / name, pickle.dumps({b"data": images.reshape(COUNT, -1), key: labels.tolist()}, protocol=2))


@pytest.mark.parametrize("writer", [write_binary, write_python])
@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_in_both_versions(tmp_path: Path, classes: int, writer: Callable[[Path, int], None]) -> None:
    writer(tmp_path, classes)
    data = load(f"cifar{classes}", tmp_path)
    seeds = range(1, 6) if classes == 10 else [1]
    records = [cifar_records(seed, classes) for seed in seeds]
    assert data.images.dtype == torch.uint8
    assert np.array_equal(data.images.numpy(), np.concatenate([images for _, images in records]))
    assert data.labels.dtype == np.int64
    assert np.array_equal(data.labels, np.concatenate([labels for labels, _ in records]))
    assert data.classes == (CIFAR10_CLASSES if classes == 10 else CIFAR100_CLASSES)
    assert data.clean_labels is None
    assert data.verified.all()
    test = load(f"cifar{classes}", tmp_path, train=False)
    assert not test.train
    assert np.array_equal(test.images.numpy(), cifar_records(6, classes)[1])
    inside = next(tmp_path.iterdir())
    assert np.array_equal(load(f"cifar{classes}", inside).labels, data.labels)


def test_all_versions_may_lie_in_one_root(tmp_path: Path) -> None:
    for classes in (10, 100):
        write_binary(tmp_path, classes)
        write_python(tmp_path, classes)
    assert len(load("cifar10", tmp_path)) == 5 * COUNT
    assert len(load("cifar100", tmp_path)) == COUNT


def test_the_superclasses_of_cifar100() -> None:
    assert len(CIFAR100_CLASSES) == len(set(CIFAR100_CLASSES)) == 100
    assert np.bincount(CIFAR100_SUPERCLASSES).tolist() == [5] * 20
    assert list(FAMILIES) == sorted(FAMILIES)
    # The first and last fine classes and their coarse numbers, as the published files have them.
    assert CIFAR100_CLASSES[:3] == ("apple", "aquarium_fish", "baby")
    assert CIFAR100_CLASSES[-2:] == ("woman", "worm")
    assert CIFAR100_SUPERCLASSES[:10] == (4, 1, 14, 8, 0, 6, 7, 7, 18, 3)
    assert CIFAR100_SUPERCLASSES[-10:] == (18, 1, 2, 15, 6, 0, 17, 8, 14, 13)


def test_cifar100_carries_its_superclasses(tmp_path: Path) -> None:
    write_binary(tmp_path, 100)
    data = load("cifar100", tmp_path)
    coarse = np.fromfile(tmp_path / "cifar-100-binary/train.bin", dtype=np.uint8).reshape(COUNT, -1)[:, 0]
    assert data.superclasses is not None
    assert np.array_equal(np.array(data.superclasses)[data.labels], coarse)


# MNIST and Fashion-MNIST


def write_idx(folder: Path, seed: int, *, packed: bool = False, dot: bool = False) -> None:
    for part, stem in enumerate(("train", "t10k")):
        labels = (np.arange(COUNT) + seed + part) % 10
        contents = {
            "images-idx3": struct.pack(">IIII", 0x803, COUNT, 28, 28) + pixels(seed + part, COUNT, 28, 28).tobytes(),
            "labels-idx1": struct.pack(">II", 0x801, COUNT) + labels.astype(np.uint8).tobytes(),
        }
        for name, content in contents.items():
            name = name.replace("-idx", ".idx") if dot else name
            ending = "-ubyte.gz" if packed else "-ubyte"
            write(folder / f"{stem}-{name}{ending}", gzip.compress(content) if packed else content)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "."),
        ("mnist", "raw"),
        ("mnist", "MNIST/raw"),
        ("mnist", "mnist"),
        ("fashion-mnist", "."),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_wherever_they_usually_lie(tmp_path: Path, name: str, folder: str, packed: bool) -> None:
    write_idx(tmp_path / folder, 3, packed=packed, dot=folder == "raw")
    data, test = load(name, tmp_path), load(name, tmp_path, train=False)
    assert np.array_equal(data.images.numpy(), pixels(3, COUNT, 28, 28)[:, None])
    assert np.array_equal(test.images.numpy(), pixels(4, COUNT, 28, 28)[:, None])
    assert data.labels.tolist() == [(number + 3) % 10 for number in range(COUNT)]
    assert len(data.classes) == 10
    assert data.classes[9] == ("9" if name == "mnist" else "Ankle boot")


def test_digits_and_clothes_are_not_mixed_up(tmp_path: Path) -> None:
    write_idx(tmp_path / "MNIST/raw", 1)
    with pytest.raises(SettingError, match="fashion-mnist"):
        load("fashion-mnist", tmp_path)
    write_idx(tmp_path / "FashionMNIST/raw", 5)
    assert np.array_equal(load("mnist", tmp_path).images.numpy()[:, 0], pixels(1, COUNT, 28, 28))
    assert np.array_equal(load("fashion-mnist", tmp_path).images.numpy()[:, 0], pixels(5, COUNT, 28, 28))


def test_labels_beyond_the_classes_are_refused(tmp_path: Path) -> None:
    write_idx(tmp_path, 0)
    write(tmp_path / "train-labels-idx1-ubyte", struct.pack(">II", 0x801, COUNT) + bytes(range(COUNT)))
    with pytest.raises(SettingError, match="labels from 0 to 11, but its classes are 0 to 9"):
        load("mnist", tmp_path)


# digits


def test_digits_need_no_root_and_keep_a_test_set() -> None:
    data, test = load("digits"), load("digits", train=False)
    assert data.images.shape == (1438, 1, 8, 8)
    assert len(test) == 359
    assert not set(data.rows) & set(test.rows)
    assert int(data.images.max()) == 255
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)
    assert np.allclose(data.images.numpy().reshape(-1, 64), values[data.rows] * 255 / 16, atol=0.5)
    assert np.array_equal(data.labels, labels[data.rows])


def test_without_scikit_learn_the_way_to_get_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match="scikit-learn"):
        load("digits")


# ImageNet


def write_imagenet(root: Path) -> None:
    for label, name in enumerate(("n01", "n02", "n03")):
        for number in range(3):
            picture(root / f"train/{name}/{name}_{number}.JPEG", 10 * label + number)
    for label, name in enumerate(("n01", "n03")):
        picture(root / f"val/{name}/val_{label}.JPEG", 50 + label)


def test_imagenet_has_a_folder_per_class(tmp_path: Path) -> None:
    write_imagenet(tmp_path)
    with opened_below(tmp_path) as opened:
        data = load("imagenet", tmp_path, size=SIDE, tell=quiet)
        files = opened()
    assert len(files) == len(set(files)) == 9
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert data.classes == ("n01", "n02", "n03")
    assert data.clean_labels is None
    validation = load("imagenet", tmp_path, size=SIDE, train=False, tell=quiet)
    assert validation.labels.tolist() == [0, 2], "classes are numbered as in training, also where one is absent"
    assert validation.classes == data.classes
    picture(tmp_path / "val/n99/x.JPEG", 3)
    with pytest.raises(SettingError, match=r"classes that .*train lacks: 'n99'"):
        load("imagenet", tmp_path, train=False, tell=quiet)


def test_validation_images_without_class_folders(tmp_path: Path) -> None:
    write_imagenet(tmp_path)
    picture(tmp_path / "val/loose.JPEG", 1)
    with pytest.raises(SettingError, match=r"Expected is a folder per class: ROOT/train/n01440764"):
        load("imagenet", tmp_path, train=False, tell=quiet)


# any


def test_a_limit_is_spread_over_the_whole_set(tmp_path: Path) -> None:
    write_binary(tmp_path, 10)
    write_imagenet(tmp_path)
    whole, some = load("cifar10", tmp_path), load("cifar10", tmp_path, limit=7)
    assert some.rows.tolist() == [0, 10, 20, 30, 39, 49, 59]
    assert torch.equal(some.images, whole.images[some.rows])
    assert np.array_equal(some.labels, whole.labels[some.rows])
    assert len(load("cifar10", tmp_path, limit=1000)) == len(whole)
    with opened_below(tmp_path) as opened:
        photos = load("imagenet", tmp_path, size=SIDE, limit=4, tell=quiet)
        assert len(opened()) == 4
    assert photos.rows.tolist() == [0, 3, 5, 8]
    assert photos.labels.tolist() == [0, 1, 1, 2]


def test_small_images_can_be_resized(tmp_path: Path) -> None:
    write_idx(tmp_path, 2)
    plain, larger = load("mnist", tmp_path), load("mnist", tmp_path, size=32)
    assert larger.images.shape == (COUNT, 1, 32, 32)
    assert larger.images.dtype == torch.uint8
    assert larger.images.float().mean() == pytest.approx(float(plain.images.float().mean()), abs=2)
    assert torch.equal(load("mnist", tmp_path, size=28).images, plain.images)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("cifar10", r"data_batch_1\.bin.*ROOT/cifar-10-batches-bin/"),
        ("cifar100", r"train\.bin.*ROOT/cifar-100-binary/"),
        ("mnist", r"train-images-idx3-ubyte.*ROOT/MNIST/raw"),
        ("fashion-mnist", r"train-images-idx3-ubyte.*ROOT/FashionMNIST/raw"),
        ("webvision", r"info/train_filelist_google\.txt, info/train_filelist_flickr\.txt"),
        ("webvision-mini", r"info/train_filelist_google\.txt"),
        ("clothing1m", r"noisy_train_key_list\.txt.*ROOT/images/"),
        ("imagenet", r"train/.*a folder per class"),
    ],
)
def test_a_wrong_root_is_told_what_is_missing(tmp_path: Path, name: str, missing: str) -> None:
    with pytest.raises(SettingError, match=rf"{name} \(train\) was not found.*{missing}.*--data"):
        load(name, tmp_path)
    with pytest.raises(SettingError, match="not a folder"):
        load(name, tmp_path / "nowhere")
    with pytest.raises(SettingError, match=f"--data ROOT is needed.*{name}"):
        load(name)


def test_only_what_is_missing_is_named(tmp_path: Path) -> None:
    write_binary(tmp_path, 10)
    (tmp_path / "cifar-10-batches-bin/data_batch_4.bin").unlink()
    with pytest.raises(SettingError, match=r"cifar-10-batches-bin lacks data_batch_4\.bin\. Expected"):
        load("cifar10", tmp_path)


def test_settings_out_of_range_and_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="'cifar' is unknown; choose one of cifar10, cifar100, mnist") as caught:
        load("cifar", tmp_path)
    assert all(name in str(caught.value) for name in NAMES)
    with pytest.raises(SettingError, match="size = 4"):
        load("digits", size=4)
    with pytest.raises(SettingError, match="limit = 1"):
        load("digits", limit=1)
    with pytest.raises(SettingError, match="3 images do not go with 2 labels"):
        LabelledData("x", torch.zeros(3, 1, 2, 2, dtype=torch.uint8), np.arange(2), ("a", "b"), np.arange(2))
