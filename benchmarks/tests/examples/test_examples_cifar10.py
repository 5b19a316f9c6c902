"""The examples on CIFAR-10 run from beginning to end, on a miniature of it and a narrow network."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from bench_paths import ROOT
from cifar_files import write_learnable

pytestmark = pytest.mark.long

EXAMPLES = ROOT / "examples"
SMALL = ["--limit", "300", "--epochs", "6", "--width", "4", "--device", "cpu"]


def run(name: str, arguments: list[str], place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What an example returns."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    data = write_learnable(place)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--data", str(data), *SMALL, *arguments])
    found: dict[str, Any] = import_module(name).main()
    return found


def test_curriculum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = run("curriculum_cifar10", ["--noise", "symmetric-20"], tmp_path, monkeypatch)
    assert found["curriculum"] > 0.3
    assert found["plain"] > 0.3
    shown = capsys.readouterr().out
    assert "60 of 300 labels are wrong" in shown
    assert "share before  share after" in shown


def test_poisoning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--attack", "badnets-5", "--known", "5", "--folder", str(tmp_path / "out")]
    found = run("poisoning_cifar10", options, tmp_path, monkeypatch)
    assert set(found["aupr"]) == {"known", "nothing known"}
    assert found["aupr"]["known"] > 0.5
    assert "15 of 300 images are poisoned" in capsys.readouterr().out
    assert (tmp_path / "out" / "culprits.csv").read_text().startswith("index,poison_score")


def test_unlearning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run("unlearning_cifar10", ["--folder", str(tmp_path / "out")], tmp_path, monkeypatch)
    assert found["certificate_kept"]
    assert found["closed"] > 0.8
    assert (tmp_path / "out" / "unlearning.jsonl").exists()


@pytest.mark.parametrize("name", ["curriculum", "poisoning", "unlearning"])
def test_they_need_to_be_told_where_it_is(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [f"{name}_cifar10.py"])
    with pytest.raises(SystemExit):
        import_module(f"{name}_cifar10").main()
    assert "--data" in capsys.readouterr().err
