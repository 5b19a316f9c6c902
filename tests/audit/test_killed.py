"""A process that is killed at any moment leaves a run that ends with the same result."""

from __future__ import annotations

import random
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from audit_cases import read_issues, run_audit

from sgoif.audit.audit import audit
from sgoif.audit.settings import AuditSettings

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

OPTIONS = {"model": "tiny_nets:tiny", "epochs": 6, "device": "cpu", "early_stop": False}
OFTEN = "import sgoif.audit.run_directory as r; r.EVERY = r.EPOCH_EVERY = {seconds}"
SUICIDE = """
import os, signal, {module} as module
calls, inner = [], {target}
def dying(*given, **options):
    calls.append(0)
    if len(calls) == {count}:
        os.kill(os.getpid(), signal.SIGKILL)
    return inner(*given, **options)
{target} = dying
"""
"""Python that kills its own process at the n-th call of a function: a kill at an exact moment."""
MOMENTS = {
    "a step": ("sgoif.audit.training", "module.Training.advance"),
    "a write": ("os", "module.fsync"),
    "a rename": ("os", "module.replace"),
}


def settings(folder: Path, out: Path) -> AuditSettings:
    return AuditSettings(folder, out=out, **OPTIONS)  # type: ignore[arg-type]


def words(folder: Path, out: Path) -> list[str]:
    """The options of the command line that gives the same settings."""
    return shlex.split(settings(folder, out).command("--resume"))[3:]


def killed(folder: Path, out: Path, moment: str, count: int) -> None:
    module, target = MOMENTS[moment]
    before = OFTEN.format(seconds=0.0) + SUICIDE.format(module=module, target=target, count=count)
    process = run_audit(folder, *words(folder, out), cwd=out.parent, before=before)
    _, messages = process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL, messages


@pytest.fixture(scope="module")
def expected(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The table of a run that nobody disturbs."""
    out = tmp_path_factory.mktemp("whole") / "run"
    audit(settings(photos, out))
    return read_issues(out)


@pytest.mark.parametrize(
    "kills",
    [
        [("a step", 20), ("a rename", 7)],
        [("a write", 5), ("a write", 12)],
        pytest.param([("a rename", n) for n in range(1, 9)], marks=pytest.mark.slow),
        pytest.param([("a write", n) for n in range(1, 6)], marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed_gives_the_same_table(
    kills: list[tuple[str, int]], photos: Path, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    for moment, count in kills:
        killed(photos, out, moment, count)
    audit(settings(photos, out), resume=True)
    assert read_issues(out) == expected
    assert not list(out.glob(".*.part"))


@pytest.mark.slow
def test_killed_at_ten_random_moments(photos: Path, expected: list[dict[str, Any]], tmp_path: Path) -> None:
    out = tmp_path / "run"
    start = time.monotonic()
    process = run_audit(photos, *words(photos, tmp_path / "timed"), cwd=tmp_path)
    assert process.wait(timeout=240) == 0
    process.communicate()
    seconds = time.monotonic() - start
    generator = random.Random(time.time_ns())
    for _ in range(10):
        process = run_audit(photos, *words(photos, out), cwd=tmp_path, before=OFTEN.format(seconds=0.2))
        moment = generator.uniform(0.3, 1.0) * seconds
        print(f"killed after {moment:.2f} s")
        time.sleep(moment)
        process.kill()
        process.communicate()
    audit(settings(photos, out), resume=True)
    assert read_issues(out) == expected


def test_ctrl_c_leaves_with_130_and_the_command_to_resume(photos: Path, tmp_path: Path) -> None:
    options = [*words(photos, Path("run")), "--epochs", "5000", "--json"]
    process = run_audit(photos, *options, cwd=tmp_path)
    try:
        for line in process.stderr:
            if line.startswith("training"):
                break
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        printed, messages = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, messages
    assert printed == ""
    assert "Traceback" not in messages
    assert "is kept" in messages
    assert "--epochs 5000" in messages
    assert "--resume" in messages
    assert (tmp_path / "run" / "checkpoint.npz").is_file()
