"""The example on digits runs, and what it shows is so."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An example as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_unlearning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    module = loaded("unlearning", monkeypatch)
    monkeypatch.setattr(sys, "argv", ["unlearning.py", "--folder", str(tmp_path), "--epochs", "4"])
    found = module.main()
    assert found["spearman"] > 0.8
    assert found["closed"] > 0.8
    assert found["certificate_kept"]
    assert found["holds"]
    shown = capsys.readouterr().out
    for words in (
        "no example is called 'no-such-example'",
        "was asked for before, in request 2",
        "is sound: 12 entries",
        "was changed after it was written",
        "cannot be trusted",
    ):
        assert words in shown
    assert (tmp_path / "unlearning.npz").exists()
