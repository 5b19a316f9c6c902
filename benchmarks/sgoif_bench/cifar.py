"""CIFAR-10 from its binary files, kept whole in memory.

A record is one label byte followed by 3 × 1024 pixel bytes (red, green and blue planes, row by row).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sgoif.errors import SettingError

FOLDER = "cifar-10-batches-bin"
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)
CLASSES = 10
RECORD = 1 + 3 * 32 * 32


def read_cifar10(root: str | Path, *, train: bool = True) -> tuple[Tensor, Tensor]:
    """Images uint8 [N, 3, 32, 32] and labels int64 [N], in the order of the files."""
    folder = Path(root) / FOLDER
    if not folder.is_dir() and Path(root).name == FOLDER:
        folder = Path(root)
    names = TRAIN_FILES if train else TEST_FILES
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise SettingError(
            f"CIFAR-10 was not found: {folder} lacks {', '.join(missing)}. Expected is the binary version of the data "
            f"set (cifar-10-binary.tar.gz), unpacked so that ROOT/{FOLDER}/{names[0]} exists; give ROOT as --data"
        )
    records = np.concatenate([_read_records(folder / name) for name in names])
    labels = torch.from_numpy(records[:, 0].astype(np.int64))
    images = torch.from_numpy(np.ascontiguousarray(records[:, 1:])).view(-1, 3, 32, 32)
    return images, labels


def _read_records(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    raw = np.fromfile(path, dtype=np.uint8)
    if raw.size == 0 or raw.size % RECORD:
        raise SettingError(
            f"{path} holds {raw.size} bytes, not a whole number of {RECORD}-byte records: unpack it again"
        )
    records = raw.reshape(-1, RECORD)
    if records[:, 0].max() >= CLASSES:
        raise SettingError(f"{path} has labels up to {records[:, 0].max()}; CIFAR-10 has classes 0 to {CLASSES - 1}")
    return records
