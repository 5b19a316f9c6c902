"""`sgoif trace RUN`: on what a finished audit left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_cases import MODEL, TARGET, World, read

from sgoif.cli import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("audited") / "sgoif-audit-pictures"
    words = ["--out", str(out), "--epochs", "14", "--no-augment", "--no-early-stop", "--batch-size", "32"]
    assert main(["audit", str(world.data), *MODEL, *words, "--holdout", "0.05"]) == 0
    return out


def test_an_audit_brings_everything_along(world: World, run: Path, tmp_path: Path, capfd: Captured,
                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    capfd.readouterr()
    assert main(["trace", str(run), *MODEL, "--victims", str(world.victims), "--label", TARGET, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    out = tmp_path / "sgoif-trace-pictures"
    assert Path(told["directory"]) == out
    table = read(out / "culprits.csv")
    selected = {row["path"] for row in table if row["selected"] == "True"}
    held = json.loads((run / "summary.json").read_text())["plan"]
    assert held["epochs"] == 14
    assert selected <= world.poison
    assert len(selected) >= len(world.poison) - 4  # some are held out by the audit
    assert told["examples"] == len(table) < len(world.images)
    assert {row["source"] for row in read(out / "decisions.csv")} == {str(world.data)}
    assert main(["apply", str(out / "decisions.csv"), "--to", str(tmp_path / "clean"), "--dry-run"]) == 0
    assert f"dropped     {len(selected)}" in capfd.readouterr().out
    before = sorted(path.name for path in run.iterdir())
    assert main(["trace", str(run), *MODEL, "--out", str(tmp_path / "unknown"), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["victims"] is None
    assert sorted(path.name for path in run.iterdir()) == before  # the run is read, never written


def test_an_unfinished_run_says_how_to_go_on(run: Path, tmp_path: Path, capfd: Captured) -> None:
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "run.json").write_bytes((run / "run.json").read_bytes())
    assert main(["trace", str(tmp_path / "half")]) == 2
    err = capfd.readouterr().err
    assert "not finished" in err
    assert "--resume" in err
