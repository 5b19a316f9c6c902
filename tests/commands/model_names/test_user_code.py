"""The current folder is where a user's module may lie; it takes the place of nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from name_cases import COMMANDS, Received, rename, witness

from sgoif.core.user_code import SAFE_PATH, importable_from_here, own_function
from sgoif.distributed.launch import launch
from sgoif.errors import ModelError

SOURCES = Path(__file__).resolve().parents[3] / "src"


def in_a_process(*words: str) -> subprocess.CompletedProcess[str]:
    """`python -m sgoif` in the current folder."""
    paths = os.pathsep.join([str(SOURCES), str(Path(__file__).parent)])
    environment = {name: value for name, value in os.environ.items() if name != SAFE_PATH}
    return subprocess.run(
        [sys.executable, "-m", "sgoif", *words],
        env={**environment, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module of its own that has the name of one in the standard library."""
    monkeypatch.chdir(tmp_path)
    witness(tmp_path / "sched.py", tmp_path / "imported", "def make(): pass")
    sys.modules.pop("sched", None)
    yield tmp_path
    for name in ("sched", "my_own_module"):
        sys.modules.pop(name, None)


def test_files_here_do_not_stand_for_the_standard_library(here: Path) -> None:
    (here / "my_own_module.py").write_text("import sched\ndef make(): return sched.__file__\n")
    assert Path(own_function("my_own_module:make", "model")()).parent != here
    assert not (here / "imported").exists()


def test_an_installed_module_of_the_same_name_is_named_by_its_file(here: Path) -> None:
    with pytest.raises(ModelError, match=r"'sched' \(.*sched\.py\) has no 'make'"):
        own_function("sched:make", "model", ModelError)


@pytest.mark.parametrize("name", ["witness", "witness:", ":make", ""])
def test_half_a_name_imports_nothing(received: Received, marker: Path, name: str) -> None:
    with pytest.raises(ModelError, match=r"expected package\.module:function"):
        own_function(name, "model", ModelError)
    assert not marker.exists()


def test_the_path_is_as_before_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    with importable_from_here():
        assert sys.path == [*before, str(tmp_path)]
    assert sys.path == before
    monkeypatch.setattr(sys, "path", [str(tmp_path), *before])
    with importable_from_here():
        assert sys.path == [str(tmp_path), *before]
    assert sys.path == [str(tmp_path), *before]


def test_timm_is_not_what_lies_here(received: Received) -> None:
    witness(received.folder / "timm.py", received.folder / "imported", "def is_model(name): return False")
    rename(received, "timm:resnet18")
    done = in_a_process(*COMMANDS["sentinel score"])
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not (received.folder / "imported").exists()


def test_processes_that_train_together_start_from_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(SAFE_PATH, raising=False)
    witness(tmp_path / "multiprocessing.py", tmp_path / "imported", "raise SystemExit")
    assert launch(1, partial(int, 5), int) == 5
    assert not (tmp_path / "imported").exists()
    assert SAFE_PATH not in os.environ
