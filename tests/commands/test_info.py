"""`sgoif info` tells what a result depends on and what is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sgoif.cli import main
from sgoif.commands import info

ROOT = Path(__file__).resolve().parents[2]
WANTED = {
    "cli": ["typer>=0.12", "rich>=13.8"],
    "audit": ["sgoif[cli]", "pillow>=10"],
    "gone": ["surely-not-installed>=3"],
    "circle": ["sgoif[circle, cli]", "not-there-either"],
    "dev": ["sgoif[audit]"],
}


def test_json_has_everything_that_repeating_a_run_needs(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert set(found) == {"versions", "machine", "cuda_devices", "torch", "reproducibility", "extras"}
    assert found["torch"]["version"] == torch.__version__
    assert {"cuda", "cudnn", "revision"} <= set(found["torch"])
    assert found["reproducibility"]["threads"] == torch.get_num_threads()
    assert {"PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS"} <= set(
        found["reproducibility"]["environment"]
    )


def test_settings_and_variables_are_those_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    torch.use_deterministic_algorithms(True)
    try:
        found = info.reproducibility()
    finally:
        torch.use_deterministic_algorithms(False)
    assert found["deterministic_algorithms"] is True
    assert found["cudnn_benchmark"] is True
    assert found["environment"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert found["environment"]["PYTHONHASHSEED"] is None
    assert info.reproducibility()["deterministic_algorithms"] is False


def test_the_table_shows_the_same(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(info, "requirements", lambda: WANTED)
    assert main(["info"]) == 0
    text = capfd.readouterr().out
    assert torch.__version__ in text
    assert "deterministic algorithms" in text
    assert "missing surely-not-installed; pip install 'sgoif[gone]'" in text


def test_extras_name_what_is_there_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "requirements", lambda: WANTED)
    found = info.extras()
    assert set(found) == {"cli", "audit", "gone", "circle"}
    assert set(found["audit"]["packages"]) == {"typer", "rich", "pillow"}
    assert found["cli"]["installed"]
    assert "missing" not in found["cli"]
    assert found["gone"] == {
        "installed": False,
        "packages": {"surely-not-installed": None},
        "missing": ["surely-not-installed"],
        "install": "pip install 'sgoif[gone]'",
    }
    assert found["circle"]["missing"] == ["not-there-either"]


def test_extras_are_those_of_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        requires = (
            "torch>=2.6",
            "rich>=13.8; extra == 'cli'",
            'sgoif[cli]; extra == "audit"',
            'pillow>=10; (python_version > "3") and extra == "audit"',
        )

        class metadata:
            @staticmethod
            def get_all(name: str) -> list[str]:
                return ["cli", "audit"]

    monkeypatch.setattr(info.metadata, "distribution", lambda name: Installed)
    assert info.requirements() == {"cli": ["rich>=13.8"], "audit": ["sgoif[cli]", "pillow>=10"]}


def test_no_place_of_this_machine_is_told() -> None:
    text = json.dumps(info.facts())
    assert str(ROOT) not in text
    assert str(Path.home()) not in text or str(Path.home()) == "/"
