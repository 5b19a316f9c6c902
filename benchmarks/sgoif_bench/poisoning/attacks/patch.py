"""A small checkerboard in one corner or all four: the trigger of the patch attacks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.errors import SettingError

SIZE_SHARE, USUAL, SMALL, SMALL_UP_TO = 10, 3, 2, 12
"""By default a patch is about a tenth of the image's side and, as usual, no smaller than 3×3 pixels; in tiny images it
is 2×2."""


@dataclass(frozen=True)
class Patch:
    """Puts a checkerboard, bright at its corners, into the lower right corner of images or into all four.

    `size` is its side and `margin` its distance from the edge, both in pixels.
    """

    size: int
    margin: int = 0
    everywhere: bool = False
    """In all four corners, the pattern mirrored so that mirrored images carry it unchanged."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.margin < 0:
            raise SettingError(f"a patch of {self.size} pixels, {self.margin} from the edge, is none")

    @classmethod
    def for_images(cls, images: Tensor, size: int | None, everywhere: bool = False) -> Patch:
        """One of this size, or of a size that suits the images."""
        side = int(min(images.shape[-2:]))
        usual = SMALL if side <= SMALL_UP_TO else max(USUAL, round(side / SIZE_SHARE))
        chosen = usual if size is None else size
        if 2 * chosen > side:
            raise SettingError(f"a patch of {chosen} pixels covers half of an image of {side}; choose a smaller one")
        return cls(chosen, margin=0, everywhere=everywhere)

    def __call__(self, images: Tensor) -> Tensor:
        """Copies of uint8 images with the patch."""
        stamped = images.clone()
        first, last = self.margin, self.margin + self.size
        board = checkerboard(self.size).to(images.device)
        stamped[..., -last : images.shape[-2] - first, -last : images.shape[-1] - first] = board
        if self.everywhere:
            stamped[..., first:last, -last : images.shape[-1] - first] = board.flip(0)
            stamped[..., -last : images.shape[-2] - first, first:last] = board.flip(1)
            stamped[..., first:last, first:last] = board.flip(0, 1)
        return stamped


def checkerboard(size: int) -> Tensor:
    """White and black fields of one pixel, uint8 [size, size], white in the lower right corner."""
    place = torch.arange(size)
    return (((place[:, None] + place[None, :]) % 2 == 0) * 255).to(torch.uint8).flip(0, 1).contiguous()
