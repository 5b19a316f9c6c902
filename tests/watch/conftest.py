"""A run directory as an audit leaves it, without the audit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sgoif.audit.live import CURVES, LIVE
from sgoif.audit.rundir import CACHE, RUN
from sgoif.images import open_images, prepare

Tell = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Twelve pictures of two classes, one with a hostile name, prepared."""
    generator = np.random.default_rng(0)
    for number, name in enumerate(("a&b", "c")):
        (tmp_path / "in" / name).mkdir(parents=True)
        for k in range(6):
            pixels = generator.integers(0, 255, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "in" / name / f"{number}<b>{k}.png")
    folder = tmp_path / "run"
    prepare(open_images(tmp_path / "in"), folder / CACHE)
    (folder / RUN).write_text("{}")
    return folder


@pytest.fixture
def tell(run: Path) -> Tell:
    """`tell(step=…, **changes)` writes live.json."""

    def write(step: int = 0, entries: int = 0, **changes: Any) -> None:
        history = {name: [float(k + 1) / 10 for k in range(entries)] for name in CURVES}
        live = {
            "state": "training", "stopped": "", "step": step, "steps": 100, "epoch": 1, "epochs": 4, "loss": 0.5,
            "seconds": 20.0, "model": "resnet9", "images": 12, "classes": 2, "history": history, "estimate": None,
            "worst_step": None, "worst": [], "alarms": [],
        }  # fmt: skip
        (run / LIVE).write_text(json.dumps({**live, **changes}), encoding="utf-8")

    return write
