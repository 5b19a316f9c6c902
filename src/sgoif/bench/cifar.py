"""CIFAR-10 from its binary files, kept whole in memory, with augmentation on the device that trains.

A record is one label byte followed by 3 × 1024 pixel bytes (red, green and blue planes, row by row).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


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


def crop_and_flip(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Move every image by up to `padding` pixels each way, filling by reflection, and mirror half of them.

    One gather for the whole batch, on the images' own device; padded copies are never made.
    """
    count, channels, height, width = images.shape
    if padding >= min(height, width):
        raise SettingError(f"padding = {padding} must be smaller than the image ({height}×{width}) to be reflected")

    def source(size: int) -> Tensor:
        shift = torch.randint(-padding, padding + 1, (count, 1), generator=generator, device=images.device)
        position = (torch.arange(size, device=images.device) + shift).abs()
        return torch.where(position >= size, 2 * (size - 1) - position, position)

    rows, columns = source(height), source(width)
    mirrored = torch.rand(count, 1, generator=generator, device=images.device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    which = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return images[which, channel, rows[:, None, :, None], columns[:, None, None, :]]


def normalise(images: Tensor) -> Tensor:
    """Bytes to floats with zero mean and unit spread per channel."""
    mean = torch.tensor(MEAN, device=images.device).view(1, 3, 1, 1)
    spread = torch.tensor(STD, device=images.device).view(1, 3, 1, 1)
    return (images.float() / 255 - mean) / spread


@dataclass
class Batches:
    """Shuffled, augmented, normalised batches (x, y, index) of data that already lies on the training device."""

    images: Tensor
    """uint8 [N, 3, 32, 32]"""
    labels: Tensor
    index: Tensor
    """What each example is called in the data set it came from, int64 [N], on the CPU like a loader's."""
    batch_size: int
    seed: int = 0
    augment: bool = True
    channels_last: bool = False

    def __post_init__(self) -> None:
        if not len(self.images) == len(self.labels) == len(self.index):
            raise SettingError(
                f"{len(self.images)} images, {len(self.labels)} labels and {len(self.index)} indices do not match"
            )
        if not 1 <= self.batch_size <= len(self.images):
            raise SettingError(
                f"batch_size = {self.batch_size} must lie between 1 and {len(self.images)}, the data's size"
            )
        self._generator = torch.Generator(device=self.images.device).manual_seed(self.seed)
        self._order = torch.Generator().manual_seed(self.seed)

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """One epoch: every example once, in batches of nearly equal size, none larger than `batch_size`."""
        order = torch.randperm(len(self.images), generator=self._order)
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        for chosen in order.tensor_split(len(self)):
            here = chosen.to(self.images.device, non_blocking=True)
            x = self.images[here]
            if self.augment:
                x = crop_and_flip(x, self._generator)
            yield normalise(x).contiguous(memory_format=layout), self.labels[here], self.index[chosen]
