"""A folder to unlearn in. Keys of these tests stay out of the home folder of whoever runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from unlearn_cases import Captured, write_features

from sgoif.cli import main


@pytest.fixture(autouse=True)
def config(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration directory."""
    folder = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_features(tmp_path / "f.npz")
    return tmp_path


@pytest.fixture
def begun(here: Path, capfd: Captured) -> Path:
    assert main(["unlearn", "init", "--features", "f.npz", "--device", "cpu"]) == 0
    capfd.readouterr()
    return here
