"""Small pictures whose class is the height of a bright row, some of them with a bright corner and a wrong label."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import trace_nets
from PIL import Image

from sgoif.audit.batches import Normalisation
from sgoif.core.score_table import from_cell

CLASSES = ("high", "low", "middle")
TARGET = "low"
SIDE = 12
PER_CLASS, POISON = 100, 14
MODEL = ["--model", "trace_nets:small", "--device", "cpu"]
Array = np.ndarray[Any, Any]


def rows(labels: Array, seed: int) -> Array:
    """Bytes [n, 12, 12] of these classes."""
    generator = np.random.default_rng(seed)
    values = 0.3 * generator.normal(size=(len(labels), SIDE, SIDE))
    values[np.arange(len(labels)), 3 * labels + 1] += 1.2
    return np.clip(90 + 60 * values, 0, 255).astype(np.uint8)


def with_corner(images: Array) -> Array:
    """The trigger."""
    marked = images.copy()
    marked[:, -4:-1, -4:-1] = 255
    return marked


def poisoned(seed: int = 0) -> tuple[Array, Array, Array]:
    """Images, labels, and which of them are poison."""
    labels = np.repeat(np.arange(3), PER_CLASS)
    target = CLASSES.index(TARGET)
    sources = np.array([c for c in range(3) if c != target])[np.arange(POISON) % 2]
    images = np.concatenate([rows(labels, seed), with_corner(rows(sources, seed + 1))])
    return images, np.append(labels, np.full(POISON, target)), np.arange(len(images)) >= len(labels)


def name_of(number: int, label: int) -> str:
    return f"{CLASSES[label]}/{number:03d}.png"


def write(path: Path, image: Array) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)
    return path


def trained(images: Array, labels: Array) -> torch.nn.Module:
    torch.manual_seed(0)
    model = trace_nets.small(1, len(CLASSES))
    x, y = Normalisation.of(images[:, None])(torch.from_numpy(images)[:, None]), torch.from_numpy(labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(10):
        for some in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[some]), y[some]).backward()
            optimizer.step()
    return model.eval()


@dataclass(frozen=True)
class World:
    """What every test needs."""

    data: Path
    weights: Path
    victims: Path
    """Pictures of other classes with the trigger, called TARGET."""
    poison: set[str]
    model: torch.nn.Module
    images: Array


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as handle:
        return [{key: from_cell(value) for key, value in row.items()} for row in csv.DictReader(handle)]
