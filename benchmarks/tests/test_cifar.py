"""Reading CIFAR-10's binary layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sgoif.errors import SettingError
from sgoif_bench.cifar import TEST_FILES, TRAIN_FILES, read_cifar10

PER_FILE = 4


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Six small files in the published layout."""
    generator = np.random.default_rng(0)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in (*TRAIN_FILES, *TEST_FILES):
        labels = generator.integers(0, 10, (PER_FILE, 1))
        pixels = generator.integers(0, 256, (PER_FILE, 3072))
        np.concatenate([labels, pixels], axis=1).astype(np.uint8).tofile(folder / name)
    return tmp_path


def test_records_become_images_and_labels(root: Path) -> None:
    images, labels = read_cifar10(root)
    assert images.shape == (5 * PER_FILE, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert labels.dtype == torch.int64
    second = (root / "cifar-10-batches-bin" / "data_batch_2.bin").read_bytes()
    number = PER_FILE + 1  # the second record of the second file
    record = second[3073 : 2 * 3073]
    assert labels[number] == record[0]
    assert images[number, 1, 2, 3] == record[1 + 1024 + 2 * 32 + 3]
    assert read_cifar10(root, train=False)[0].shape[0] == PER_FILE


def test_the_folder_itself_is_accepted(root: Path) -> None:
    assert len(read_cifar10(root / "cifar-10-batches-bin")[1]) == 5 * PER_FILE


def test_missing_and_damaged_files_are_named(root: Path) -> None:
    folder = root / "cifar-10-batches-bin"
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(SettingError, match=r"lacks data_batch_3\.bin.*--data"):
        read_cifar10(root)
    (folder / "data_batch_3.bin").write_bytes(b"\0" * 3072)
    with pytest.raises(SettingError, match="unpack it again"):
        read_cifar10(root)
    (folder / "data_batch_3.bin").write_bytes(b"\x0b" * 3073)
    with pytest.raises(SettingError, match="labels up to 11"):
        read_cifar10(root)
