"""A tiny network and images whose class is a colour, some of them with a wrong label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sgoif.backbones import Backbone
from sgoif.backbones.base import make_backbone
from sgoif_bench.labels.datasets import LabelledData
from sgoif_bench.noise import NoisyLabels, symmetric
from sgoif_bench.pretrained.pictures import Pictures
from sgoif_bench.pretrained.recipes import Recipe
from sgoif_bench.pretrained.task import Task

CLASSES, SIDE, EXAMPLES = 4, 8, 160
CPU = torch.device("cpu")


def backbone() -> Backbone:
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    )
    return make_backbone("tiny", body, 12, (0.5,) * 3, (0.25,) * 3)


def colours(name: str = "textures", examples: int = EXAMPLES) -> LabelledData:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(examples) % CLASSES)
    means = rng.integers(60, 200, (CLASSES, 3, 1, 1))
    pixels = means[labels] + rng.normal(0, 25, (examples, 3, SIDE, SIDE))
    images = torch.from_numpy(pixels.clip(0, 255).astype(np.uint8))
    return LabelledData(name, images, labels, tuple("abcd"), np.arange(examples))


def recipe(**changes: Any) -> Recipe:
    return Recipe(backbone="tiny", digest="0", size=12, **{"simifeat_epochs": 5, "epochs": 4, "rate": 0.2, **changes})


def pictures(scratch: Path, data: LabelledData | None = None, **changes: Any) -> Pictures:
    told: list[str] = []
    return Pictures(data or colours(), backbone(), recipe(**changes), CPU, scratch, 0.5, told.append)


def planted(scratch: Path, seed: int = 0, **changes: Any) -> tuple[Task, NoisyLabels]:
    seen = pictures(scratch, **changes)
    noise = symmetric(seen.data.labels, CLASSES, 0.15, seed=3)
    return Task(seen, noise.labels, seed, "symmetric-15", seen.tell, {"command": "made here"}), noise
