"""Images without labels, brought to what a network takes: its side, its channels, bytes.

As in OpenOOD the shorter side is brought to the wanted length (bilinear, antialiased) and the centre cut out. Colour
becomes grey by luma, as Pillow does it, before it is resized; grey becomes three equal channels. (OpenOOD gives its
LeNet three equal channels where this benchmark gives it one.)

Files are decoded batch by batch, so that a set of any size can be read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sgoif.errors import SettingError

if TYPE_CHECKING:
    from PIL import Image

LUMA = (19595, 38470, 7471)
"""Shares of red, green and blue in 2⁻¹⁶ (ITU-R 601-2)."""
READERS = 8


@dataclass(frozen=True)
class Look:
    """What a network takes."""

    channels: int
    side: int
    files: Literal["bilinear", "bicubic"] = "bilinear"
    """How image files are resized: bicubic where the in-distribution images come from files read that way."""


class Pictures(Protocol):
    """Images that can be read again and again."""

    def __len__(self) -> int: ...

    def pick(self, rows: NDArray[np.int64]) -> Self:
        """Some of them."""

    def batches(self, look: Look, size: int) -> Iterator[Tensor]:
        """uint8 [n, channels, side, side], at most `size` at a time, in order."""


@dataclass(frozen=True)
class Stack:
    """Images as one array."""

    images: Tensor
    """uint8 [N, C, H, W]"""

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4 or self.images.shape[1] not in (1, 3):
            raise SettingError(
                f"images of type {self.images.dtype} and shape {list(self.images.shape)} cannot be read; expected are"
                " bytes with one or three channels"
            )

    def __len__(self) -> int:
        return len(self.images)

    def pick(self, rows: NDArray[np.int64]) -> Stack:
        return Stack(self.images[torch.from_numpy(rows)])

    def batches(self, look: Look, size: int) -> Iterator[Tensor]:
        for part in self.images.split(size):
            yield fitted(with_channels(part, look.channels), look.side)


@dataclass(frozen=True)
class Files:
    """An image per file; what cannot be read is left out."""

    paths: Sequence[Path]
    unreadable: dict[str, str] = field(default_factory=dict)
    """Files that were left out so far, and why."""

    def __len__(self) -> int:
        return len(self.paths)

    def pick(self, rows: NDArray[np.int64]) -> Files:
        return Files([self.paths[row] for row in rows.tolist()])

    def batches(self, look: Look, size: int) -> Iterator[Tensor]:
        from sgoif.images import UnreadableImageError
        from sgoif.images.decode import decode

        def read(path: Path) -> Tensor | None:
            try:
                image = decode(path)
            except UnreadableImageError as error:
                self.unreadable[os.fspath(path)] = str(error)
                return None
            return _tensor(image.convert("L" if look.channels == 1 else "RGB"), look)

        with ThreadPoolExecutor(min(READERS, os.cpu_count() or 1)) as pool:
            for start in range(0, len(self.paths), size):
                images = [image for image in pool.map(read, self.paths[start : start + size]) if image is not None]
                if images:
                    yield torch.stack(images)


def spread(pictures: Pictures, limit: int | None) -> Pictures:
    """At most so many of them, spread evenly over their order."""
    if limit is None or limit >= len(pictures):
        return pictures
    return pictures.pick(np.linspace(0, len(pictures) - 1, limit).round().astype(np.int64))


def with_channels(images: Tensor, channels: int) -> Tensor:
    """Bytes [n, C, H, W] with one or three channels."""
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1)
    weights = torch.tensor(LUMA, dtype=torch.int32).view(1, 3, 1, 1)
    return ((images.int() * weights).sum(dim=1, keepdim=True) + (1 << 15) >> 16).to(torch.uint8)


def fitted(images: Tensor, side: int) -> Tensor:
    """Squares of this side: the shorter side resized to it, the centre cut out."""
    height, width = images.shape[-2:]
    if (height, width) == (side, side):
        return images
    wide, high = resized(width, height, side)
    top, left = round((high - side) / 2), round((wide - side) / 2)
    whole = F.interpolate(images.contiguous(), (high, wide), mode="bilinear", antialias=True)
    return whole[..., top : top + side, left : left + side].contiguous()


def resized(width: int, height: int, side: int) -> tuple[int, int]:
    """Width and height with the shorter side brought to `side`."""
    shorter = min(width, height)
    return int(side * width / shorter), int(side * height / shorter)


def _tensor(image: Image.Image, look: Look) -> Tensor:
    values = np.asarray(_CUTS[look.files](image, look.side))
    planes = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
    return torch.from_numpy(np.require(planes, requirements=["C", "W"]))


def _bilinear(image: Image.Image, side: int) -> Image.Image:
    from PIL import Image

    wide, high = resized(*image.size, side)
    left, top = round((wide - side) / 2), round((high - side) / 2)
    return image.resize((wide, high), Image.Resampling.BILINEAR).crop((left, top, left + side, top + side))


def _bicubic(image: Image.Image, side: int) -> Image.Image:
    from sgoif.images.reading import centre_square

    return centre_square(image, side)


_CUTS: dict[str, Callable[[Image.Image, int], Image.Image]] = {"bilinear": _bilinear, "bicubic": _bicubic}
