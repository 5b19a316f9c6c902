"""A pretrained network of images: what it wants to see, the features it gives, a copy that can be trained further."""

import copy
import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.backbones.fused import fused
from sgoif.errors import ModelError

Colours = tuple[float, float, float]
LADDER = (96, 128, 160, 192, 224)
"""Resolutions below its own that a network of any resolution is used at."""
ENLARGED = 5
"""Features of small images became better up to about five times their size (CIFAR-10: 32 pixels shown at 160)."""
BATCH = {"cpu": 16, "cuda": 128}
"""Images at a time."""


@dataclass(frozen=True, eq=False)
class Backbone:
    """A pretrained network without its head; `load_backbone` makes one.

    Example:
        ```python
        import torch

        from sgoif.backbones import load_backbone

        try:
            backbone = load_backbone("lite0")                        # pip install 'sgoif[pretrained]'
        except ImportError as error:
            print(error)
        else:
            photos = torch.randint(0, 256, (4, 3, 150, 200), dtype=torch.uint8)
            features = backbone.features(photos)                     # [4, 1280]
            model = backbone.network(classes=10)                     # to fine-tune
            logits = model(backbone.prepare(photos))                 # [4, 10]
        ```
    """

    name: str
    digest: str
    """SHA-256 of all that features follow from beside the images and their size: weights, layers, normalisation."""
    size: int
    """Pixels a side that it was made for."""
    sizes: tuple[int, ...]
    """All that it is used at, in ascending order; `size` is the last."""
    mean: Colours
    std: Colours
    """Subtracted from colours between 0 and 1, and what they are then divided by."""
    width: int
    """Number of features."""
    body: nn.Module
    """Prepared images [n, 3, s, s] to features [n, width]."""
    early: int = 0
    """How many first layers of the body, a chain, have large maps: all of its layers where it is 0."""

    def prepare(self, images: Tensor, size: int | None = None) -> Tensor:
        """Images as the network wants them: three colours, one size, normalised.

        Args:
            images: [n, channels, height, width], uint8 or floats between 0 and 1. One channel is grey; the last of two
                or of four is opacity, and what is transparent lies on white.
            size: one of `sizes`; `size` where not given. Images become squares of it, smaller ones are enlarged.

        Returns:
            float32 [n, 3, size, size].
        """
        size = self.checked_size(size)
        found = _three_colours(images)
        if found.shape[-2:] != (size, size) and len(found):
            found = F.interpolate(found, (size, size), mode="bilinear", antialias=True)
        mean, std = (found.new_tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        return ((found - mean) / std).contiguous(memory_format=torch.channels_last)

    def checked_size(self, size: int | None) -> int:
        """One of `sizes`; `size` where not given."""
        if size is not None and size not in self.sizes:
            raise ModelError(f"backbone {self.name!r} works at {self.sizes} pixels a side, not at {size}")
        return self.size if size is None else size

    def resolution_for(self, side: float) -> int:
        """The least of `sizes` that is five times the shorter side of the images, else the largest."""
        return next((size for size in self.sizes if size >= ENLARGED * side), self.size)

    @torch.inference_mode()
    def features(self, images: Tensor, size: int | None = None, batch: int | None = None) -> Tensor:
        """Features of images as `prepare` takes them: float32 [n, width], on the device of the images."""
        network = self._for_inference.to(images.device)
        batch = batch or BATCH.get(images.device.type, BATCH["cuda"])
        found = [network(self.prepare(part, size)).float() for part in images.split(batch)] if len(images) else []
        return torch.cat(found) if found else torch.empty(0, self.width, device=images.device)

    @cached_property
    def _for_inference(self) -> nn.Module:
        return fused(self.body, self.early)

    def network(self, classes: int) -> nn.Module:
        """A copy to train further: the body, then a fresh linear head; prepared images to logits [n, classes]."""
        parts = OrderedDict(body=copy.deepcopy(self.body), head=nn.Linear(self.width, classes))
        return nn.Sequential(parts).requires_grad_(True).train()


def make_backbone(name: str, body: nn.Module, size: int, mean: Colours, std: Colours, early: int = 0) -> Backbone:
    """A backbone of a network without its head, which is tried at its own size and at the least one."""
    if len(mean) != 3 or len(std) != 3 or not all(spread > 0 for spread in std):
        raise ModelError(f"backbone {name!r} normalises with {mean}, {std}; expected three colours, spreads above 0")
    body = body.float().eval().requires_grad_(False)
    try:
        width = _width(body, size)
    except Exception as error:
        raise ModelError(f"backbone {name!r} cannot be used: {type(error).__name__}: {error}") from error
    try:
        smaller = [side for side in LADDER if side < size] if _width(body, min(LADDER)) == width else []
    except Exception:  # made for one size, which it asks for in words of its own
        smaller = []
    return Backbone(name, _digest(body, mean, std), size, (*smaller, size), mean, std, width, body, early)


def _width(body: nn.Module, size: int) -> int:
    with torch.inference_mode():
        found = body(torch.zeros(2, 3, size, size))
    if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != 2:
        given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ModelError(f"it returns {given}; expected features [2, width]")
    return found.shape[1]


def _digest(body: nn.Module, mean: Colours, std: Colours) -> str:
    found = hashlib.sha256(repr((str(body), mean, std)).encode())
    for name, value in body.state_dict().items():
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def _three_colours(images: Tensor) -> Tensor:
    if images.dim() != 4 or images.shape[1] not in (1, 2, 3, 4) or 0 in images.shape[2:]:
        raise ModelError(f"images of shape {tuple(images.shape)}; expected [n, 1 to 4 channels, height, width]")
    if images.dtype == torch.uint8:
        found = images.float() / 255
    elif images.is_floating_point():
        found = images.float()
        if not bool(((found >= 0) & (found <= 1)).all()):
            raise ModelError("images of floats must lie between 0 and 1: divide by their largest value, or give uint8")
    else:
        raise ModelError(f"images of type {images.dtype}; expected uint8, or floats between 0 and 1")
    if found.shape[1] in (2, 4):
        colours, opacity = found[:, :-1], found[:, -1:]
        found = colours * opacity + (1 - opacity)
    return found.expand(-1, 3, -1, -1) if found.shape[1] == 1 else found
