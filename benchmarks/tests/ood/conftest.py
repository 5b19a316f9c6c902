"""A folder to work in, with stand-ins in place of the real methods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ood_roots import write_root
from ood_stand_ins import CALLS, OUTLIERS, STAND_INS

from sgoif_bench.ood import evaluation, runner
from sgoif_bench.ood.registry import METHODS


@pytest.fixture(scope="session")
def whole_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_root(tmp_path_factory.mktemp("data"))


@pytest.fixture
def place(tmp_path: Path, whole_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the data in `data`; what methods cost is measured in few rounds."""
    (tmp_path / "data").symlink_to(whole_root)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluation, "SECONDS", 0.0)
    CALLS.clear()
    OUTLIERS.clear()
    return tmp_path


@pytest.fixture
def stand_ins(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same with the stand-ins in place of the real methods, and small batches, which are timed sooner."""
    monkeypatch.setattr(runner, "BATCH", 30)
    methods = dict(METHODS)
    METHODS.clear()
    METHODS.update({method.name: method for method in STAND_INS})
    yield place
    METHODS.clear()
    METHODS.update(methods)
