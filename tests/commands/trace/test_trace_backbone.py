"""`sgoif trace --backbone`: poison found with a pretrained network, where nobody has trained one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from backbone_cases import NAME, offer
from trace_cases import TARGET, World, read

from sgoif.cli import main


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)


def test_victims_lead_to_the_poison(world: World, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--data", world.data, "--backbone", NAME, "--victims", world.victims, "--label", TARGET, "--device", "cpu"]
    assert main(["trace", *map(str, words), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["selected"] > 0
    table = read(here / "sgoif-trace-data" / "culprits.csv")
    assert {row["path"] for row in table[: len(world.poison)]} == world.poison
    assert "a head that was learned from these images" in (here / "sgoif-trace-data" / "culprits.html").read_text()


def test_a_run_has_a_model_of_its_own(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "somewhere", "--backbone", NAME]) == 2
    assert "leave away --backbone" in capfd.readouterr().err
