"""A finished audit and a sentinel to tamper with, and a module whose import is noticed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from name_cases import OWN, Received, witness
from PIL import Image

from sgoif.cli import main


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Received:
    made = Received(tmp_path_factory.mktemp("originals"))
    generator = np.random.default_rng(0)
    for number in range(180):
        image = 40 + 20 * generator.normal(size=(8, 8))
        image[2 * (number % 3) + 1] += 120
        path = made.images / ("high", "low", "middle")[number % 3] / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(path)
    words = [*OWN, "--device", "cpu", "--epochs", "1", "--out", str(made.run)]
    assert main(["audit", str(made.images), *words]) == 0
    assert main(["sentinel", "fit", "--run", str(made.run), *OWN, "--out", str(made.sentinel)]) == 0
    return made


@pytest.fixture
def received(originals: Received, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Received:
    """Copies in the current folder."""
    shutil.copytree(originals.run, tmp_path / "run")
    shutil.copy(originals.sentinel, tmp_path)
    (tmp_path / "images").symlink_to(originals.images)
    monkeypatch.chdir(tmp_path)
    return Received(tmp_path)


@pytest.fixture
def marker(received: Received) -> Iterator[Path]:
    """A file that exists once the module `witness`, which lies in the current folder, was imported."""
    path = received.folder / "imported"
    witness(received.folder / "witness.py", path, "from name_nets import tiny as make")
    yield path
    sys.modules.pop("witness", None)
