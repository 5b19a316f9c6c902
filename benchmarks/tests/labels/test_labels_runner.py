"""Jobs of `sgoif-bench labels`: interrupted, killed, in several processes; nothing finished is ever computed again."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from labels_stand_ins import bench, calls, expected, found, results, start

from sgoif_bench import journal
from sgoif_bench.journal import Journal
from sgoif_bench.labels.grid import KIND
from sgoif_bench.labels.problem import Outcome, Problem

pytestmark = pytest.mark.long

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")


def test_a_torn_line_is_ignored_and_repaired(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench() == 0
    whole = Path("r.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    assert [json.loads(line)["method"] for line in lines][-2:] == ["first", "second"], "ablations come first"
    calls()
    for length in (1, 40, len(lines[-1]) - 2):
        Path("r.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:length])
        told: list[str] = []
        assert len(KIND.read([Path("r.jsonl")], told.append)) == len(lines) - 1
        assert "incomplete" in told[0]
        assert bench() == 0
        assert calls() == ["duo"]
        assert "it is removed" in capsys.readouterr().err
        repaired = Path("r.jsonl").read_bytes()
        assert repaired.startswith(b"".join(lines[:-1]))
        assert len(repaired.splitlines()) == len(lines)
        assert [KIND.key_of(json.loads(line)) for line in repaired.splitlines()] == [
            KIND.key_of(json.loads(x)) for x in lines
        ]
    Path("r.jsonl").write_bytes(whole[:-1])
    assert bench() == 0
    assert calls() == []
    assert Path("r.jsonl").read_bytes() == whole


def test_a_write_that_fails_leaves_nothing_behind(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench(methods="alpha") == 0
    before, real = Path("r.jsonl").read_bytes(), os.write

    def full(file: int, content: bytes) -> int:
        if len(content) < 100:
            raise OSError(28, "No space left on device", "r.jsonl")
        return real(file, content[:-50])

    monkeypatch.setattr(journal.os, "write", full)
    assert bench(methods="beta") == 2
    monkeypatch.undo()
    assert Path(place / "r.jsonl").read_bytes() == before


@posix
def test_a_second_writer_is_kept_out(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal(Path("r.jsonl"), KIND):
        assert bench() == 2
    assert "another run is writing" in capsys.readouterr().err
    assert bench() == 0


@posix
def test_killed_while_training_and_while_writing(quick: Path) -> None:
    wanted = expected(quick)
    killed = start("--seeds", "0,1", DIE_AT="4")
    _, messages = killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL, messages
    assert calls() == ["alpha", "beta", "duo", "alpha"]
    assert len(results()) == 5
    torn = start("--seeds", "0,1", DIE_IN_WRITE="2")
    _, messages = torn.communicate(timeout=120)
    assert torn.returncode == -signal.SIGKILL, messages
    assert calls() == ["alpha", "beta"]
    assert not Path("r.jsonl").read_bytes().endswith(b"\n")
    assert bench("--seeds", "0,1") == 0
    assert calls() == ["beta", "duo"]
    assert found() == wanted


@posix
def test_workers_share_the_jobs_and_one_that_dies_is_replaced(quick: Path) -> None:
    wanted = expected(quick)
    process = start("--seeds", "0,1", "--workers", "2", DIE_AT="2")
    _, messages = process.communicate(timeout=180)
    assert process.returncode == 1, messages
    assert "its process died (signal 9)" in messages
    pids = {line.split()[3] for line in Path(os.environ["CALLS"]).read_text().splitlines()}
    assert len(pids) >= 2
    assert str(process.pid) not in pids
    assert sorted(calls()) == ["alpha", "alpha", "beta", "beta", "duo", "duo"]
    assert 5 <= len(results()) < len(wanted)
    assert {name: found()[name] for name in found()} == {name: wanted[name] for name in found()}
    assert bench("--seeds", "0,1") == 0
    assert len(calls()) == 1
    assert found() == wanted


def wait_for(condition: Any, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -signal.SIGKILL), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_a_parent_that_is_stopped_takes_its_workers_along(quick: Path, number: signal.Signals, code: int) -> None:
    trace = Path(os.environ["CALLS"])
    process = start("--workers", "2", methods="beta,alpha", WAIT="1")
    try:
        wait_for(lambda: trace.exists() and len(trace.read_text().splitlines()) == 2 and "alpha-0" in names())
        workers = [int(line.split()[3]) for line in trace.read_text().splitlines()]
        process.send_signal(number)
        _, messages = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, messages
    assert "Traceback" not in messages
    if code == 130:
        assert "1 of 2 trainings are kept; the same command goes on from there" in messages
    wait_for(lambda: not any(is_alive(pid) for pid in workers), seconds=30)
    calls()
    assert bench(methods="beta,alpha") == 0
    assert calls() == ["beta"]


def test_ctrl_c_keeps_what_is_finished(
    quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(problem: Problem, tell: Any) -> Outcome:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules["labels_stand_ins"], "beta", interrupted)
        assert bench() == 130
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "1 of 3 trainings are kept; the same command goes on from there" in streams.err
    assert calls() == ["alpha"]
    assert bench() == 0
    assert calls() == ["beta", "duo"]


def names() -> list[str]:
    return list(results()) if Path("r.jsonl").exists() else []
