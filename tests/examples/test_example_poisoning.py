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
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_poisoning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    module = loaded("poisoning", monkeypatch)
    monkeypatch.setattr(sys, "argv", ["poisoning.py", "--folder", str(tmp_path), "--epochs", "7"])
    found = module.main()
    assert found["before"][0] > 0.9
    assert found["after"][0] < 0.1
    assert found["after"][1] > found["before"][1] - 0.02
    assert found["known"]["poison"] >= 0.9 * 27
    assert found["known"]["selected"] <= 1.2 * found["known"]["poison"]
    assert found["known"]["first"] >= 0.9 * 27
    assert found["unknown"]["first"] >= 0.5 * 27
    assert "Who did it?" in capsys.readouterr().out
    assert (
        (tmp_path / "culprits.csv").read_text().startswith("index,poison_score,probability,family,given_label,selected")
    )
