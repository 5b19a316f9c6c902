"""A folder to work in, with stand-ins in place of the real methods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from labels_stand_ins import install, tiny

from sgoif_bench.labels import kept
from sgoif_bench.labels.registry import FAMILIES, METHODS


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, and the stand-ins in place of the real methods."""
    methods, families = dict(METHODS), dict(FAMILIES)
    install()
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    METHODS.clear()
    METHODS.update(methods)
    FAMILIES.clear()
    FAMILIES.update(families)


@pytest.fixture
def quick(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same with the data that the command has when this file is run as a program."""
    monkeypatch.setattr(kept, "load", tiny)
    return place
