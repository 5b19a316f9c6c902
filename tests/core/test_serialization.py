"""Archives that would unpack to more than they hold are refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from sgoif.core.serialization import load_state, save_state
from sgoif.errors import StateError


def archive(path: Path, packing: int = zipfile.ZIP_STORED, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", packing) as file:
        for name, content in entries.items():
            file.writestr(f"{name}.npy", content)
    return path


def test_a_state_is_never_packed(tmp_path: Path) -> None:
    save_state(tmp_path / "state.npz", {"w": torch.zeros(10_000), "step": 1})
    assert load_state(tmp_path / "state.npz")["step"] == 1
    with zipfile.ZipFile(tmp_path / "state.npz") as file:
        entries = {name.removesuffix(".npy"): file.read(name) for name in file.namelist()}
    with pytest.raises(StateError, match="would unpack to"):
        load_state(archive(tmp_path / "packed.npz", zipfile.ZIP_DEFLATED, **entries))
