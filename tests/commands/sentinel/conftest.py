"""One trained model and one sentinel for all tests; nobody changes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sentinel_cases import MODEL, World, rows, trained, write_classes

from sgoif.audit.batches import Normalisation
from sgoif.cli import main


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    save_file = pytest.importorskip("safetensors.torch").save_file
    folder = tmp_path_factory.mktemp("world")
    normalise = Normalisation.of(rows(300, 0)[0][:, None])
    with torch.random.fork_rng():
        model = trained(normalise)
    save_file(model.state_dict(), folder / "model.safetensors")
    made = World(
        train=write_classes(folder / "train", 300, 0),
        held=write_classes(folder / "held", 150, 1),
        weights=folder / "model.safetensors",
        sentinel=folder / "sentinel.npz",
        normalise=normalise,
    )
    words = [str(made.train), *MODEL, "--weights", str(made.weights), "--calibration", str(made.held)]
    assert main(["sentinel", "fit", *words, "--out", str(made.sentinel)]) == 0
    return made


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path
