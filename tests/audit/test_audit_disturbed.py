"""Two writers of one folder, and a clock that jumps."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from warm_processes import COMMAND, python, sgoif

from sgoif.audit.audit import audit
from sgoif.audit.progress import Lines
from sgoif.audit.settings import AuditSettings
from sgoif.cli import main
from sgoif_bench.faults.digits import MODEL, make_folder
from sgoif_bench.faults.kills import arguments

# --- two writers ----------------------------------------------------------------------------------------------------


def test_the_second_writer_is_told_and_the_first_is_unharmed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    photos, run = make_folder(tmp_path / "photos", per_class=20), tmp_path / "run"
    given = arguments(photos, run, 60)
    first = python(COMMAND, *given, NO_COLOR="1")
    try:
        while first.poll() is None and not (run / "live.json").exists():
            time.sleep(0.02)
        assert main(given) == 2
        assert f"another process ({first.pid}) is at work in" in capfd.readouterr().err
        printed, messages = first.communicate(timeout=120)
    finally:
        first.kill()
    assert first.returncode == 0, messages
    assert json.loads(printed)["steps"] == json.loads((run / "live.json").read_text())["steps"]
    # In a process of its own: what other tests leave behind in this one can move the last digits.
    assert sgoif("audit", str(photos), "--out", str(tmp_path / "alone"), *given[4:]).returncode == 0
    assert (tmp_path / "alone" / "issues.csv").read_bytes() == (run / "issues.csv").read_bytes()


# --- clocks ---------------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_changes_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = make_folder(tmp_path / "photos", per_class=20)

    def scores(name: str) -> bytes:
        settings = AuditSettings(photos, out=tmp_path / name, model=MODEL, epochs=3, device="cpu", early_stop=False)
        audit(settings, Lines(every=0.0))
        return (tmp_path / name / "issues.csv").read_bytes()

    steady = scores("steady")
    now, looks = time.time, [0]

    def jumping() -> float:
        looks[0] += 1
        return now() + (-1) ** looks[0] * 3e8

    monkeypatch.setattr(time, "time", jumping)
    assert scores("jumping") == steady
