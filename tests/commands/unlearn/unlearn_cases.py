"""Features to unlearn from, and commands with what they answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sgoif.cli import main

Captured = pytest.CaptureFixture[str]
COUNT = 120


def write_features(path: Path, seed: int = 0, **changes: Any) -> Path:
    """Three clouds with names, some of them held out."""
    generator = np.random.default_rng(seed)
    labels = np.arange(COUNT + 60) % 3
    features = generator.normal(size=(len(labels), 5)).astype(np.float32)
    features[np.arange(len(labels)), labels] += 2
    arrays: dict[str, Any] = {
        "features": features[:COUNT],
        "labels": labels[:COUNT],
        "ids": np.array([f"img/{number}.png" for number in range(COUNT)]),
        "held_features": features[COUNT:],
        "held_labels": labels[COUNT:],
        "class_names": np.array(["cat", "dog", "[red]cow"]),
        **changes,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def told(capfd: Captured, *words: str) -> dict[str, Any]:
    """What a command printed as JSON."""
    capfd.readouterr()
    assert main(["unlearn", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found
