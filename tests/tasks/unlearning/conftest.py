"""A folder of its own for every test that writes a log."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path
