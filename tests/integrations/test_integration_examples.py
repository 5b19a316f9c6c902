"""The examples run, and find most of the labels that they made wrong."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "package"),
    [("lightning_digits", "lightning"), ("trainer_digits", "transformers"), ("accelerate_digits", "accelerate")],
)
def test_an_example(name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip(package)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, "--epochs", "4"])
    found = importlib.import_module(name).main()
    assert found > 0.6  # a tenth by chance
