"""Enhancements of the Python imaging library on whole batches: colour, contrast, brightness and sharpness.

Each is a step from a poorer image towards the given one, or beyond it:

    poorer + factor (given − poorer),    cut off to bytes

The poorer image is grey for colour, one level (the rounded mean of the grey image) for contrast, black for brightness
and smoothed for sharpness, by (1 1 1; 1 5 1; 1 1 1) / 13 with the outermost pixels as they are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ENHANCEMENTS = ("color", "contrast", "brightness", "sharpness")
GREY = (19595, 38470, 7471)
"""Of 65536: the library's weights of red, green and blue."""
KERNEL = ((1.0, 1.0, 1.0), (1.0, 5.0, 1.0), (1.0, 1.0, 1.0))


def grey(images: Tensor) -> Tensor:
    """Bytes [n, C, H, W] to the library's grey, int64 [n, 1, H, W]; one channel stays as it is."""
    if images.shape[1] == 1:
        return images.long()
    weights = torch.tensor(GREY, device=images.device).view(1, 3, 1, 1)
    return ((images.long() * weights).sum(dim=1, keepdim=True) + 2**15) >> 16


def smoothed(images: Tensor) -> Tensor:
    """Bytes with the kernel over them, as floats of whole levels."""
    channels = images.shape[1]
    kernel = torch.tensor(KERNEL, device=images.device).expand(channels, 1, 3, 3)
    result = images.float().clone()
    if min(images.shape[2:]) > 2:
        inner = F.conv2d(images.double(), kernel.double(), groups=channels) / 13
        result[:, :, 1:-1, 1:-1] = (inner + 0.5).floor().clamp(0, 255).float()
    return result


def enhanced(images: Tensor, name: str, factor: Tensor) -> Tensor:
    """Bytes [n, C, H, W], each with its own factor [n]."""
    given = images.float()
    if name == "color":
        poorer = grey(images).float().expand_as(given)
    elif name == "contrast":
        poorer = (grey(images).double().mean(dim=(1, 2, 3), keepdim=True) + 0.5).floor().float().expand_as(given)
    elif name == "brightness":
        poorer = torch.zeros_like(given)
    else:
        poorer = smoothed(images)
    blended = poorer + factor.view(-1, 1, 1, 1) * (given - poorer)
    return blended.clamp(0, 255).to(torch.uint8)
