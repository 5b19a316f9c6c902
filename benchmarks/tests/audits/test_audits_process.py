"""An audit as a process: its stages are told apart, and what it says last is heard where it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgoif.errors import SgoifError
from sgoif_bench.audits.process import run_audit

PROGRAM = """
import os, sys, time
from pathlib import Path
Path(sys.argv[2]).write_text(" ".join([*sys.argv[1:], os.environ["SGOIF_CACHE"]]))
for line in {lines!r}:
    print(line, file=sys.stderr, flush=True)
    time.sleep(0.05)
sum(range(3_000_000))
sys.exit({code})
"""
LINES = [
    "reading images: 100",
    "reading images: 50 of 100, about 9 s left",
    "features by lite0 at 96 pixels: 100",
    "training heads on the features: 400",
    "a short look at resnet7-whitened: 200",
    "chosen by a short look at each: heads on frozen features agreed with 80.0% of the held-out labels",
    "training resnet7-whitened: 1275",
    "training resnet7-whitened: 141 of 1275, epoch 6 of 51, loss 0.856, about 2 min left",
    "judging labels",
    "reading images: 100",
    "writing the page: 100",
    "page to look at: /somewhere/report.html",
]


def fake(folder: Path, code: int) -> dict[str, str]:
    """An environment in which `python -m sgoif` is a program that says these lines."""
    (folder / "sgoif.py").write_text(PROGRAM.format(lines=LINES, code=code), encoding="utf-8")
    return {"PYTHONPATH": str(folder), "SGOIF_CACHE": "kept"}


def test_stages_are_told_apart_and_fill_the_whole_time(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    found = run_audit([str(heard), "--seed", "3"], fake(tmp_path, 0))
    assert heard.read_text() == f"audit {heard} --seed 3 kept"
    assert list(found.stages) == ["start", "reading", "features", "heads", "looks", "training", "judging", "page"]
    assert sum(found.stages.values()) == pytest.approx(found.seconds, abs=1e-6)
    assert found.stages["reading"] > 0.14  # twice, and the first time with a second line
    assert found.stages["training"] > 0.09
    assert 0 < found.cpu_seconds < found.seconds


def test_what_failed_is_said(tmp_path: Path) -> None:
    with pytest.raises(SgoifError, match=r"exit code 2: page to look at: /somewhere"):
        run_audit([str(tmp_path / "heard")], fake(tmp_path, 2))
