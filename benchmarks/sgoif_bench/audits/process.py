"""An audit as a process of its own, as a person starts it, and how long each of its stages took.

A stage begins where the audit says so on standard error. Where this process is killed, nobody reads that any more, and
the next line that the audit writes ends it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sgoif.errors import SgoifError

STAGES = {
    "reading images": "reading",
    "features by": "features",
    "training heads": "heads",
    "a short look": "looks",
    "training": "training",
    "judging labels": "judging",
    "writing the page": "page",
}
"""How the first line of a stage begins, and what the stage is called here."""
FIRST = re.compile(rf"({'|'.join(STAGES)})[^:]*(: \d+( of \d+ done)?)?\n?")
START = "start"
"""From the start of the process to the first stage."""


@dataclass(frozen=True)
class Measured:
    """What an audit took."""

    seconds: float
    """From the start of the process to its end."""
    cpu_seconds: float
    """Of all its threads and processes."""
    stages: dict[str, float]
    """Parts of `seconds`."""


def run_audit(arguments: Sequence[str], environment: Mapping[str, str]) -> Measured:
    """Run `sgoif audit` with these arguments; raises where it fails, with what it said last."""
    start = since = time.perf_counter()
    stage, stages, said = START, dict[str, float](), ""
    with subprocess.Popen(
        [sys.executable, "-m", "sgoif", "audit", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                said = line.strip() or said
                begins = FIRST.fullmatch(line)
                if begins:
                    now = time.perf_counter()
                    stages[stage] = stages.get(stage, 0.0) + now - since
                    stage, since = STAGES[begins[1]], now
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
    end = time.perf_counter()
    if process.returncode:
        raise SgoifError(f"`sgoif audit` ended with exit code {process.returncode}: {said}")
    stages[stage] = stages.get(stage, 0.0) + end - since
    return Measured(end - start, usage.ru_utime + usage.ru_stime, stages)
