"""Batches of images kept whole in memory: shuffled, moved and mirrored, normalised, on the device that trains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

from sgoif.errors import SettingError

Channels = tuple[float, ...]
CIFAR_MEAN: Channels = (0.4914, 0.4822, 0.4465)
CIFAR_STD: Channels = (0.2470, 0.2435, 0.2616)


def crop_and_flip(images: Tensor, generator: torch.Generator, padding: int = 4, mirror: bool = True) -> Tensor:
    """Move every image by up to `padding` pixels each way, filling by reflection, and mirror half of them if asked.

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
    if mirror:
        mirrored = torch.rand(count, 1, generator=generator, device=images.device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    which = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return images[which, channel, rows[:, None, :, None], columns[:, None, None, :]]


def normalise(images: Tensor, mean: Channels = CIFAR_MEAN, spread: Channels = CIFAR_STD) -> Tensor:
    """Bytes to floats with zero mean and unit spread per channel."""
    shape = (1, len(mean), 1, 1)
    centre = torch.tensor(mean, device=images.device).view(shape)
    return (images.float() / 255 - centre) / torch.tensor(spread, device=images.device).view(shape)


@dataclass
class Batches:
    """Shuffled, augmented, normalised batches (x, y, index) on the device of the labels.

    Images lie there too, or, where they are too many, on the CPU or on disk; then only a batch at a time is moved.
    """

    images: Tensor
    """uint8 [N, C, H, W]; with `rows`, any number of them."""
    labels: Tensor
    index: Tensor
    """What each example is called in the data set it came from, int64 [N], on the CPU like a loader's."""
    batch_size: int
    seed: int = 0
    augment: bool = True
    channels_last: bool = False
    mirror: bool = True
    """Whether augmentation mirrors images beside moving them."""
    padding: int = 4
    mean: Channels = CIFAR_MEAN
    spread: Channels = CIFAR_STD
    rows: Tensor | None = None
    """Where each example's image is among `images`; None: they are in order."""

    def __post_init__(self) -> None:
        size = len(self.images) if self.rows is None else len(self.rows)
        if not size == len(self.labels) == len(self.index):
            raise SettingError(f"{size} images, {len(self.labels)} labels and {len(self.index)} indices do not match")
        if not 1 <= self.batch_size <= size:
            raise SettingError(f"batch_size = {self.batch_size} must lie between 1 and {size}, the data's size")
        self._generator = torch.Generator(device=self.labels.device).manual_seed(self.seed)
        self._order = torch.Generator().manual_seed(self.seed)

    def __len__(self) -> int:
        return -(-len(self.index) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """One epoch: every example once, in batches of nearly equal size, none larger than `batch_size`."""
        order = torch.randperm(len(self.index), generator=self._order)
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        for chosen in order.tensor_split(len(self)):
            here = chosen.to(self.labels.device, non_blocking=True)
            place = chosen if self.rows is None else self.rows[chosen]
            x = self.images[place.to(self.images.device, non_blocking=True)].to(self.labels.device)
            if self.augment:
                x = crop_and_flip(x, self._generator, self.padding, self.mirror)
            yield (
                normalise(x, self.mean, self.spread).contiguous(memory_format=layout),
                self.labels[here],
                self.index[chosen],
            )


@dataclass
class LabelledImages(Dataset[tuple[Tensor, Tensor]]):
    """Normalised images with the labels somebody gave them."""

    images: Tensor
    """uint8 [N, C, H, W]"""
    labels: Tensor
    mean: Channels = CIFAR_MEAN
    spread: Channels = CIFAR_STD

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        return normalise(self.images[position, None], self.mean, self.spread).squeeze(0), self.labels[position]
