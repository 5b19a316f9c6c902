"""Damaged files fed to every reader, for as long as one likes.

A reader may answer with a result or with an error of `sgoif.errors`. Anything else is a crash: another exception, a
signal, more than a gigabyte of memory, more than half a minute. Files are read in a forked child, so that even a crash
of the interpreter leaves the file that caused it.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sgoif
from sgoif.errors import SgoifError
from sgoif_bench.command import Say
from sgoif_bench.faults.child import CRASHED, forked
from sgoif_bench.faults.damage import damaged
from sgoif_bench.faults.readers import READERS, Reader

LIMIT_SECONDS, LIMIT_BYTES = 30, 2**30
TURN = 8.0
"""Seconds that a reader is at work before the next one."""
KEPT = 10
"""Files kept of the crashes of a reader."""
SOURCES = Path(sgoif.__file__).resolve().parents[1]


class Bench:
    """One reader, its sound folder, and a folder that is damaged again and again."""

    def __init__(self, reader: Reader, folder: Path) -> None:
        self.reader, self.folder = reader, folder
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        reader.write(folder)
        self.target = folder / reader.target
        self.sound = self.target.read_bytes()

    def once(self, content: bytes) -> str | None:
        """Read the folder with this as the target: None where that works, or the name of the documented error."""
        self.target.write_bytes(content)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.reader.read(self.folder)
        except SgoifError as error:
            return type(error).__name__
        return None

    def damaged(self, draw: random.Random) -> bytes:
        """A damaged target."""
        return damaged(self.sound, self.reader.shape, draw)


def memory() -> float:
    """Largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def fuzz(
    work: Path, seconds: float, seed: int, crashes: Path, tell: Say, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Take turns over all readers until the time is over; counts and crashes are added to those of before."""
    readers = {reader.name: _empty() for reader in READERS}
    for name, counts in ((before or {}).get("readers") or {}).items():
        readers[name] = counts
    start, turn = time.monotonic(), int((before or {}).get("turns", 0))
    while (left := seconds - (time.monotonic() - start)) > 0:
        reader = READERS[turn % len(READERS)]
        _turn(reader, work / "fuzz", f"{seed} {turn}", min(TURN, max(1.0, left)), crashes, readers[reader.name])
        turn += 1
        if turn % len(READERS) == 0:
            files = sum(counts["files"] for counts in readers.values())
            tell(f"{files:,} damaged files, {sum(len(c['crashes']) for c in readers.values())} crashes")
    total = float((before or {}).get("seconds", 0.0)) + time.monotonic() - start
    return {"seconds": total, "turns": turn, "readers": readers}


def _empty() -> dict[str, Any]:
    return {"files": 0, "read": 0, "errors": {}, "crashes": []}


def _turn(reader: Reader, work: Path, seed: str, seconds: float, crashes: Path, counts: dict[str, Any]) -> None:
    """One child reads damaged files for a while."""
    if work.exists():
        shutil.rmtree(work)
    work.mkdir(parents=True)
    tally, log = work / "tally.json", work / "log"
    child = forked(lambda: _read_for(reader, work, seed, seconds, tally), log)
    ended = child.wait(seconds + 3 * LIMIT_SECONDS)
    if ended is None:
        ended = child.kill()
    if tally.exists():
        found = json.loads(tally.read_text())
        counts["files"] += found["files"]
        counts["read"] += found["read"]
        for name, count in found["errors"].items():
            counts["errors"][name] = counts["errors"].get(name, 0) + count
    if ended.code:
        counts["files"] += 1
        text = log.read_text(errors="replace").strip().splitlines()
        why = text[-1][:300] if ended.code == CRASHED and text else f"ended by signal {-ended.code}"
        where = next((line.strip() for line in reversed(text) if "sgoif" in line and "File" in line), "")
        where = where.replace(str(SOURCES), "src")
        target, kept = work / "folder" / reader.target, None
        if len(counts["crashes"]) < KEPT and target.exists():
            crashes.mkdir(parents=True, exist_ok=True)
            kept = f"{reader.name.replace(' ', '-').replace(',', '')}-{len(counts['crashes'])}"
            shutil.copyfile(target, crashes / kept)
        counts["crashes"].append({"why": why, "where": where, "file": kept})


def _read_for(reader: Reader, work: Path, seed: str, seconds: float, tally: Path) -> int:
    """Count until the time is over; what is no documented error ends the process."""
    bench, draw = Bench(reader, work / "folder"), random.Random(seed)
    files, read, errors = 0, 0, dict[str, int]()
    start, first, code = time.monotonic(), memory(), 0
    while not code and time.monotonic() - start < seconds:
        content = bench.damaged(draw)
        signal.alarm(LIMIT_SECONDS)
        try:
            answer = bench.once(content)
        except BaseException:
            traceback.print_exc()
            code = CRASHED
            break
        signal.alarm(0)
        files += 1
        read += answer is None
        if answer is not None:
            errors[answer] = errors.get(answer, 0) + 1
        if memory() - first > LIMIT_BYTES:
            print("more than a gigabyte of memory", file=sys.stderr)
            code = CRASHED
        if files % 50 == 0:
            tally.write_text(json.dumps({"files": files, "read": read, "errors": errors}))
    tally.write_text(json.dumps({"files": files, "read": read, "errors": errors}))
    return code
