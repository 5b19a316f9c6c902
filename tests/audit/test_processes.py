"""An audit by two processes: the results of one, one voice, and nothing lost when a process goes."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from audit_cases import WARM_WORKERS, read_issues, run_audit

from sgoif.audit.errors import AuditError
from sgoif.audit.plan import make_plan
from sgoif.audit.settings import AuditSettings

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals"),
    pytest.mark.skipif(not dist.is_gloo_available(), reason="needs torch.distributed with gloo"),
]
OPTIONS = ("--model", "tiny_nets:without_batch_statistics", "--epochs", "5", "--device", "cpu", "--no-early-stop")


def audited(photos: Path, out: str, cwd: Path, *options: str) -> tuple[str, str]:
    process = run_audit(photos, *OPTIONS, "--out", out, *options, cwd=cwd, before=WARM_WORKERS)
    printed, messages = process.communicate(timeout=240)
    assert process.returncode == 0, messages
    return printed, messages


def close(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> bool:
    rows = {row["path"]: row for row in second}
    return len(first) == len(second) and all(
        float(row["influence"]) == pytest.approx(float(rows[row["path"]]["influence"]), rel=1e-3, abs=1e-3)
        and row["n_observations"] == rows[row["path"]]["n_observations"]
        for row in first
    )


@pytest.mark.slow
def test_two_processes_find_what_one_finds_and_one_finishes_what_two_began(photos: Path, tmp_path: Path) -> None:
    audited(photos, "one", tmp_path)
    process = run_audit(photos, *OPTIONS, "--out", "two", "--nproc", "2", "--json", cwd=tmp_path, before=WARM_WORKERS)
    wait_for(tmp_path / "two" / "checkpoint.npz", process)
    workers = (tmp_path / "pids").read_text().split()
    assert len(workers) == 2
    os.kill(int(workers[-1]), signal.SIGKILL)
    printed, messages = process.communicate(timeout=240)
    assert process.returncode == 2, messages
    assert printed == ""
    assert "ended unexpectedly" in messages
    assert "--resume" in messages
    printed, messages = audited(photos, "two", tmp_path, "--resume", "--nproc", "2", "--json")
    assert json.loads(printed)["images"] == 180  # one object, by the first process alone
    assert "Traceback" not in messages
    expected = read_issues(tmp_path / "one")
    assert close(read_issues(tmp_path / "two"), expected)
    audited(photos, "two", tmp_path, "--resume")  # the outputs again, by one process
    assert close(read_issues(tmp_path / "two"), expected)


def wait_for(path: Path, process: Any) -> None:
    until = time.monotonic() + 200
    while not path.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)


def test_a_mistake_is_told_once(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    process = run_audit(photos, *OPTIONS, "--out", "full", "--nproc", "2", cwd=tmp_path)
    _, messages = process.communicate(timeout=240)
    assert process.returncode == 2
    assert messages.count("is not empty and not a run") == 1
    assert "Traceback" not in messages
    assert "rank" not in messages
    assert (tmp_path / "full" / "letter.txt").read_text() == "mine"


def test_sigterm_is_passed_on_and_the_run_is_kept(photos: Path, tmp_path: Path) -> None:
    options = [*OPTIONS[:3], "5000", *OPTIONS[4:], "--out", "long", "--nproc", "2"]
    process = run_audit(photos, *options, cwd=tmp_path, before=WARM_WORKERS)
    for line in process.stderr:
        if line.startswith("training"):
            break
    process.send_signal(signal.SIGTERM)
    _, messages = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, messages
    assert messages.count("is kept") == 1
    assert "--resume" in messages
    assert (tmp_path / "long" / "checkpoint.npz").is_file()


def test_batches_that_are_too_small_to_share() -> None:
    with pytest.raises(AuditError, match="too few for 8 processes"):
        make_plan(AuditSettings(Path("photos"), from_scratch=True, batch_size=12, device="cpu"), 100, 8)
