"""Small networks and collections that count what is asked of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from sgoif.backbones.base import Backbone, make_backbone
from sgoif.features import Features, extract_features
from sgoif.images import open_unlabelled
from sgoif.images.backends import Files
from sgoif.images.collection import Collection

SIDE = 32


class Patches(nn.Module):
    """Mean colours of 4 × 4 patches, behind a fixed mixture; it counts the images that it sees."""

    seen = 0

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.mixture = nn.Parameter(torch.randn(48, 20, generator=torch.Generator().manual_seed(seed)))

    def forward(self, x: Tensor) -> Tensor:
        Patches.seen += len(x)
        return nn.functional.adaptive_avg_pool2d(x, 4).flatten(1) @ self.mixture


def tiny(seed: int = 0, size: int = SIDE, std: float = 0.25) -> Backbone:
    return make_backbone("tiny", Patches(seed), size, (0.5, 0.5, 0.5), (std, std, std))


def photo(seed: int, width: int = 60, height: int = 44) -> Image.Image:
    """Smooth waves of colour."""
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(a * x / width + b * y / height + c) for a, b, c in draw.uniform(-9, 9, (3, 3))]
    return Image.fromarray(np.rint(127 + 120 * np.stack(waves, 2)).astype(np.uint8))


def photos(root: Path, count: int) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for seed in range(count):
        photo(seed).save(root / f"{seed:03}.png")
    return root


class Counting(Files):
    """Files that count what is decoded."""

    decoded = 0

    def image(self, number: int, most: int | None = None, least: int | None = None) -> Image.Image:
        Counting.decoded += 1
        return super().image(number, most, least)


@dataclass(frozen=True)
class Run:
    """The features of one call, and what it cost."""

    features: Features
    decoded: int
    computed: int
    array: Tensor
    """A copy of the features, whatever becomes of the file that they are mapped from."""


def counting(root: Path) -> Collection:
    collection = open_unlabelled(root)
    collection.store = Counting([str(collection.file(i)) for i in range(len(collection))])
    return collection


def run(root: Path, cache: Path, backbone: Backbone | None = None) -> Run:
    one = tiny() if backbone is None else backbone
    Counting.decoded = Patches.seen = 0
    features = extract_features(counting(root), one, cache=cache)
    array = torch.from_numpy(np.array(features.array, dtype=np.float32))
    return Run(features, Counting.decoded, Patches.seen, array)


def expected(root: Path, names: list[str], backbone: Backbone) -> Tensor:
    """The features by the whole images, one by one."""
    found = []
    for name in names:
        pixels = torch.from_numpy(np.asarray(Image.open(root / name).convert("RGB")).copy())
        found.append(backbone.features(pixels.permute(2, 0, 1)[None]))
    return torch.cat(found)
