"""One trained model for all tests; nobody changes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from trace_cases import CLASSES, TARGET, World, name_of, poisoned, rows, trained, with_corner, write


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    save_file = pytest.importorskip("safetensors.torch").save_file
    folder = tmp_path_factory.mktemp("world")
    images, labels, planted = poisoned()
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        write(folder / "data" / name_of(number, label), image)
    sources = np.array([c for c in range(3) if CLASSES[c] != TARGET])[np.arange(10) % 2]
    for number, image in enumerate(with_corner(rows(sources, 7))):
        write(folder / "victims" / f"victim{number}.png", image)
    with torch.random.fork_rng():
        model = trained(images, labels)
    save_file(model.state_dict(), folder / "model.safetensors")
    return World(
        data=folder / "data",
        weights=folder / "model.safetensors",
        victims=folder / "victims",
        poison={name_of(number, labels[number]) for number in np.flatnonzero(planted)},
        model=model,
        images=images,
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path
