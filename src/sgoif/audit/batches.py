"""Batches from the memory-mapped pixels. Each is a function of (seed, epoch, step), so that a run that was interrupted
goes on with exactly the batches it would have seen.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from sgoif.core.types import Indices
from sgoif.distributed.communicator import SINGLE_PROCESS, Communicator

Bytes = NDArray[np.uint8]
SHUFFLE, AUGMENT, DROPOUT = 1, 2, 3
"""Names of the independent random streams of a run; 0 is the hold-out's."""
LOOKED_AT = 10_000
"""Images from which mean and spread are taken."""
LOOKED_AT_PIXELS, LOOKED_AT_LEAST = 2**20, 50
"""Pixels of the images from which the first filters of a network are taken, and the least number of images."""
SHIFT = 8
"""Images are shifted by up to this part of their side."""
ON_DEVICE_BYTES = 4 * 2**30
"""Pixels up to this size are kept on the GPU."""


def stream(seed: int, kind: int, number: int) -> int:
    """A seed for one draw of one random stream."""
    return int(np.random.SeedSequence((seed, kind, number)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def batches_per_epoch(examples: int, batch_size: int) -> int:
    """Batches of one size, none of a single image: batch norm cannot work on one."""
    return max(1, min(-(-examples // batch_size), examples // 2))


def evenly(count: int, most: int) -> Indices:
    """At most so many of the first `count` numbers, spread evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


@dataclass(frozen=True)
class Normalisation:
    """Mean and spread of every channel, over the data's own pixels in [0, 255]."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]

    @classmethod
    def of(cls, pixels: Bytes) -> Self:
        """Exact over at most 10,000 images spread evenly over the data."""
        chosen = evenly(len(pixels), LOOKED_AT)
        channels = pixels.shape[1]
        counts = np.zeros((channels, 256), dtype=np.int64)
        for part in np.array_split(chosen, max(1, len(chosen) // 500)):
            block = pixels[part]
            for c in range(channels):
                counts[c] += np.bincount(block[:, c].ravel(), minlength=256)
        values, total = np.arange(256), counts.sum(1)
        mean = counts @ values / total
        variance = counts @ values**2 / total - mean**2
        # Images that are all alike have no spread; half a grey level keeps the division harmless.
        spread = np.sqrt(np.maximum(variance, 0.25))
        return cls(tuple(mean.tolist()), tuple(spread.tolist()))

    def __call__(self, images: Tensor) -> Tensor:
        mean = torch.tensor(self.mean, device=images.device).view(1, -1, 1, 1)
        spread = torch.tensor(self.spread, device=images.device).view(1, -1, 1, 1)
        return (images.float() - mean) / spread

    def some(self, pixels: Bytes) -> Tensor:
        """A few of the images as a network sees them, spread evenly over the data."""
        most = max(LOOKED_AT_PIXELS // (pixels.shape[-1] * pixels.shape[-2]), LOOKED_AT_LEAST)
        return self(torch.from_numpy(pixels[evenly(len(pixels), most)]))


@dataclass(frozen=True)
class Moves:
    """Where every row and column of every image comes from: shifted a little, some of them mirrored."""

    rows: Tensor
    columns: Tensor

    @classmethod
    def drawn(cls, count: int, size: tuple[int, ...], seed: int, mirror: bool) -> Self:
        """Shifts by up to an eighth of a side, filled by reflection, and half of the images mirrored where wanted.

        Random numbers are drawn on the CPU, so that they do not depend on the device.
        """
        generator = torch.Generator().manual_seed(seed)

        def source(side: int) -> Tensor:
            most = max(1, side // SHIFT)
            shift = torch.randint(-most, most + 1, (count, 1), generator=generator)
            position = (torch.arange(side) + shift).abs()
            return torch.where(position >= side, 2 * (side - 1) - position, position)

        rows, columns = source(size[0]), source(size[1])
        if mirror:
            mirrored = torch.rand(count, 1, generator=generator) < 0.5
            columns = torch.where(mirrored, columns.flip(1), columns)
        return cls(rows, columns)

    def part(self, which: slice) -> "Moves":
        """Those of some images."""
        return Moves(self.rows[which], self.columns[which])

    def applied(self, images: Tensor) -> Tensor:
        """The images, moved."""
        rows, columns = self.rows.to(images.device), self.columns.to(images.device)
        which = torch.arange(len(images), device=images.device)[:, None, None, None]
        channel = torch.arange(images.shape[1], device=images.device)[None, :, None, None]
        return images[which, channel, rows[:, None, :, None], columns[:, None, None, :]]


class Batches:
    """Shuffled, augmented, normalised batches (x, y, index) on the training device."""

    def __init__(
        self,
        pixels: Bytes,
        labels: Indices,
        rows: Indices,
        batch_size: int,
        normalise: Normalisation,
        *,
        seed: int,
        augment: bool,
        device: torch.device,
        communicator: Communicator = SINGLE_PROCESS,
    ) -> None:
        self.pixels, self.rows, self.normalise, self.communicator = pixels, rows, normalise, communicator
        self.labels = torch.from_numpy(labels)
        self.seed, self.augment, self.device = seed, augment, device
        self.mirror = pixels.shape[1] > 1  # letters and digits come in grey, and must not be mirrored
        self.parts = batches_per_epoch(len(rows), batch_size)
        self.size = -(-len(rows) // self.parts)
        self._epoch, self._order = -1, rows
        fits = device.type == "cuda" and pixels.nbytes <= ON_DEVICE_BYTES
        self._on_device = torch.from_numpy(np.ascontiguousarray(pixels)).to(device) if fits else None

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self.parts

    def at(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """The batch of a step of the whole run, several processes a part of it each.

        All are of one size, since a GPU takes seconds to find out how to compute another: the last of an epoch is
        filled up with images of the first, so that every image is seen once and a few are seen twice.
        """
        epoch, position = divmod(step, self.parts)
        if epoch != self._epoch:
            generator = np.random.default_rng((self.seed, SHUFFLE, epoch))
            order = generator.permutation(self.rows)
            self._epoch, self._order = epoch, np.concatenate([order, order[: self.parts * self.size - len(order)]])
        # Sorted: the pixels are read from the disk in one direction.
        whole = np.sort(self._order[position * self.size : (position + 1) * self.size])
        mine = self.communicator.share(len(whole))
        chosen = whole[mine]
        images = self._read(chosen)
        if self.augment:
            moves = Moves.drawn(len(whole), images.shape[-2:], stream(self.seed, AUGMENT, step), self.mirror)
            images = moves.part(mine).applied(images)
        x = self.normalise(images)
        if self.device.type == "cuda":
            x = x.contiguous(memory_format=torch.channels_last)
        index = torch.from_numpy(chosen)
        return x, self.labels[index].to(self.device, non_blocking=True), index

    def weight(self) -> float:
        """What this process's mean loss counts for in a mean over processes, so that all images count the same."""
        share = self.communicator.share(self.size)
        return self.communicator.size * int(share.stop - share.start) / self.size

    def _read(self, chosen: Indices) -> Tensor:
        if self._on_device is not None:
            return self._on_device[torch.from_numpy(chosen).to(self.device)]
        images = torch.from_numpy(np.ascontiguousarray(self.pixels[chosen]))
        return images if self.device.type == "cpu" else images.pin_memory().to(self.device, non_blocking=True)


class LabelledPixels(Dataset[tuple[Tensor, int]]):
    """All images as the model sees them, with the labels they were given; the hold-out is a part of it."""

    def __init__(self, pixels: Bytes, labels: Indices, normalise: Normalisation) -> None:
        self.pixels, self.labels, self.normalise = pixels, labels, normalise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        image = torch.from_numpy(np.array(self.pixels[row : row + 1]))
        return self.normalise(image)[0], int(self.labels[row])
