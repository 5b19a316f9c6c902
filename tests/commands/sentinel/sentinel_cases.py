"""Small pictures that belong (a bright row, by class) or do not (a bright column), and a model that knows the rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sentinel_nets
import torch
import torch.nn.functional as F
from PIL import Image

from sgoif.audit.batches import Normalisation

CLASSES = ("high", "low", "middle")
SIDE = 8
OWN = ["--model", "sentinel_nets:small"]
MODEL = [*OWN, "--device", "cpu"]
Array = np.ndarray[Any, Any]


def rows(count: int, seed: int) -> tuple[Array, Array]:
    """Bytes [n, 8, 8] and labels."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % len(CLASSES)
    values = 0.3 * generator.normal(size=(count, SIDE, SIDE))
    values[np.arange(count), 2 * labels + 1] += 1.5
    return np.clip(90 + 60 * values, 0, 255).astype(np.uint8), labels


def columns(count: int, seed: int = 9) -> Array:
    return np.ascontiguousarray(rows(count, seed)[0].transpose(0, 2, 1))


def write_classes(folder: Path, count: int, seed: int) -> Path:
    """A folder with one subfolder per class."""
    for number, (image, label) in enumerate(zip(*rows(count, seed), strict=True)):
        write(folder / CLASSES[label] / f"{number:03d}.png", image)
    return folder


def write(path: Path, image: Array) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)
    return path


@dataclass(frozen=True)
class World:
    """What every test needs: data, weights, and a sentinel that was fitted to them."""

    train: Path
    held: Path
    weights: Path
    sentinel: Path
    normalise: Normalisation


def trained(normalise: Normalisation) -> torch.nn.Module:
    torch.manual_seed(0)
    model = sentinel_nets.small(1, len(CLASSES))
    images, labels = rows(300, 0)
    x, y = normalise(torch.from_numpy(images)[:, None]), torch.from_numpy(labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(4):
        for some in torch.randperm(len(x)).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model(x[some]), y[some]).backward()
            optimizer.step()
    return model.eval()
