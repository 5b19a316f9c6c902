"""A backbone without downloads: filters drawn at random once and for all, under a name of timm's kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from sgoif.backbones import Backbone
from sgoif.backbones.base import make_backbone
from sgoif.backbones.named import SOURCES

NAME, SIDE, WIDTH = "timm:filters", 24, 144


def filters(name: str = NAME, seed: int = 0) -> Backbone:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        convolution = nn.Conv2d(3, 16, 5, padding=2)
    body = nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveMaxPool2d(3), nn.Flatten())
    return make_backbone(name, body, SIDE, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def offer(monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> None:
    """Have `load_backbone` know it; another seed is another version of its weights."""

    def load(name: str, wanted: str, file: Path | None) -> Backbone:
        return filters(name, seed)

    monkeypatch.setitem(SOURCES, "timm", load)
