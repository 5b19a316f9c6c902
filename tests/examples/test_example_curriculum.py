"""The example on digits runs, and what it shows is so."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def loaded(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_curriculum(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(sys, "argv", ["curriculum.py", "--epochs", "10"])
    found = loaded("curriculum").main()
    assert found["curriculum"] > found["plain"] + 0.03
    assert found["revised"] > found["plain"] + 0.03
    assert found["wrong"] == pytest.approx(0.2, abs=0.001)
    assert found["wrong_weight"] < 0.7 * found["wrong"]  # with more epochs less
    shown = capsys.readouterr().out
    assert "288 of 1438 labels are wrong" in shown
    assert "share before  share after" in shown
