"""The two networks of DRAEM: one restores an image, one marks where it had to be restored.

Zavrtanik, Kristan, Skočaj: DRÆM – A discriminatively trained reconstruction embedding for surface anomaly detection.
ICCV 2021.

Both halve an image several times, with two convolutions at every size, and double it again. Level l of the way down has
min(2ˡ, 8) · width channels; the way from level l up to l − 1 leaves min(2^max(l − 2, 0), 8) · width. The network that
restores keeps nothing on the way but the narrow end, so that it cannot hand an anomaly through; the one that marks is a
U-Net and sees, at every size, what it saw on the way down.

The authors halve 256×256 images four and five times. Smaller ones are halved only while two pixels a side remain.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.errors import SettingError

RESTORING_HALVINGS = 4
MARKING_HALVINGS = 5
INITIAL_SPREAD = 0.02
"""Standard deviation of the initial weights, those of DCGAN."""


def channels_at(level: int, width: int) -> int:
    """Channels at so many halvings."""
    return width * min(1 << level, 8)


def halvings(side: int, most: int) -> int:
    """How often an image of this side is halved: while at least two pixels remain, and at most `most` times."""
    if side < 4:
        raise SettingError(f"images of {side}×{side} pixels cannot be halved and leave 2×2: at least 4×4 are needed")
    return min(most, side.bit_length() - 2)


def convolved(*channels: int) -> nn.Sequential:
    """One convolution of 3×3 with batch norm and ReLU from each number of channels to the next."""
    parts: list[nn.Module] = []
    for inputs, outputs in pairwise(channels):
        parts += [nn.Conv2d(inputs, outputs, kernel_size=3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*parts)


class Down(nn.Module):
    """The way down: what two convolutions see at every size, largest first."""

    def __init__(self, channels: int, width: int, levels: int) -> None:
        super().__init__()
        counts = [channels, *(channels_at(level, width) for level in range(levels + 1))]
        self.blocks = nn.ModuleList(convolved(before, after, after) for before, after in pairwise(counts))

    def forward(self, x: Tensor) -> list[Tensor]:
        seen: list[Tensor] = []
        for block in self.blocks:
            x = block(F.max_pool2d(x, 2) if seen else x)
            seen.append(x)
        return seen


def _enlarged(x: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=True)


class Restoring(nn.Module):
    """From an image, which may have anomalies, to how it would look without."""

    def __init__(self, channels: int, side: int, width: int) -> None:
        super().__init__()
        levels = halvings(side, RESTORING_HALVINGS)
        self.down = Down(channels, width, levels)
        self.widen, self.blocks = nn.ModuleList(), nn.ModuleList()
        inner = channels_at(levels, width)
        for level in range(levels, 0, -1):
            outer = channels_at(max(level - 2, 0), width)
            self.widen.append(convolved(inner, inner))
            self.blocks.append(convolved(inner, inner, outer))
            inner = outer
        self.last = nn.Conv2d(inner, channels, kernel_size=3, padding=1)
        self.apply(_start)

    def forward(self, x: Tensor) -> Tensor:
        *sizes, x = self.down(x)
        for widen, block, like in zip(self.widen, self.blocks, reversed(sizes), strict=True):
            x = block(widen(_enlarged(x, like)))
        restored: Tensor = self.last(x)
        return restored


class Marking(nn.Module):
    """From a restored image beside the given one to logits of (as it should be, anomaly) at every pixel."""

    def __init__(self, channels: int, side: int, width: int) -> None:
        super().__init__()
        levels = halvings(side, MARKING_HALVINGS)
        self.down = Down(2 * channels, width, levels)
        self.widen, self.blocks = nn.ModuleList(), nn.ModuleList()
        inner = channels_at(levels, width)
        for level in range(levels, 0, -1):
            outer = channels_at(max(level - 2, 0), width)
            self.widen.append(convolved(inner, outer))
            self.blocks.append(convolved(outer + channels_at(level - 1, width), outer, outer))
            inner = outer
        self.last = nn.Conv2d(inner, 2, kernel_size=3, padding=1)
        self.apply(_start)

    def forward(self, restored: Tensor, given: Tensor) -> Tensor:
        *seen, x = self.down(torch.cat((restored, given), dim=1))
        for widen, block, beside in zip(self.widen, self.blocks, reversed(seen), strict=True):
            x = block(torch.cat((widen(_enlarged(x, beside)), beside), dim=1))
        logits: Tensor = self.last(x)
        return logits


@torch.no_grad()
def _start(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        module.weight.normal_(0.0, INITIAL_SPREAD)
    elif isinstance(module, nn.BatchNorm2d):
        module.weight.normal_(1.0, INITIAL_SPREAD)
        module.bias.zero_()
