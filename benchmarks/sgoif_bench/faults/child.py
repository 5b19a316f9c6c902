"""The command line in a process of its own that can be killed.

Starting Python and importing torch takes longer than a small audit. So this process imports everything once and forks:
the child calls the same `main` that `sgoif` calls, in a process group of its own, and a kill costs a fraction of a
second instead of several. Some children are fresh interpreters all the same, for kills while they import. For a fork to
be safe, nothing here computes with torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

CRASHED = 70
"""Exit code of a child that ended with a stack trace."""
POLL = 0.002


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    code: int
    """Exit code; minus the signal where one ended it."""
    seconds: float
    megabytes: float
    """Largest resident memory; of a forked child this includes what it shares with its parent."""


def warm() -> None:
    """Import what an audit imports, once, so that children have it; the first optimizer imports `torch._dynamo`."""
    import sgoif.audit.audit
    import sgoif.cli.app
    import sgoif.cli.audit
    import sgoif.images
    import sgoif.reports.page
    import sgoif.tasks
    import sgoif.tasks.unlearning  # noqa: F401

    for name in ("torch._dynamo", "pandas", "pyarrow.parquet"):
        with suppress(ImportError):
            import_module(name)


class Child:
    """A running command."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._since = time.monotonic()

    def wait(self, limit: float) -> Ended | None:
        """How it ended; None where it still runs after so many seconds since its start."""
        while True:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                seconds = time.monotonic() - self._since
                unit = 2**20 if sys.platform == "darwin" else 2**10
                return Ended(os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss / unit)
            if time.monotonic() - self._since >= limit:
                return None
            time.sleep(POLL)

    def kill(self) -> Ended:
        """End it and everything it started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        ended = self.wait(60)
        if ended is None:
            raise RuntimeError(f"process {self.pid} cannot be killed")
        return ended


def forked(act: Callable[[], int], log: Path) -> Child:
    """Run a function in a forked child; what it prints goes to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = CRASHED
        try:
            os.setpgid(0, 0)
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            for stream in (1, 2):
                os.dup2(handle, stream)
            # Whoever replaced these keeps what it is told; the log should have it.
            sys.stdout, sys.stderr = (os.fdopen(stream, "w", closefd=False) for stream in (1, 2))
            code = act()
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    with suppress(OSError):  # whichever of the two comes first
        os.setpgid(pid, pid)
    return Child(pid)


def command(arguments: Sequence[str], log: Path, before: Callable[[], None] | None = None) -> Child:
    """`sgoif` with these arguments in a forked child; `before` runs there first."""
    from sgoif.cli import main

    def act() -> int:
        if before is not None:
            before()
        return main(arguments)

    return forked(act, log)


def fresh(arguments: Sequence[str], log: Path, before: str = "") -> Child:
    """The same in a new interpreter; `before` is Python that runs there first."""
    program = f"{before}\nimport sys\nfrom sgoif.cli import main\nsys.exit(main(sys.argv[1:]))"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], stdout=out, stderr=out, start_new_session=True
        )
    return Child(process.pid)
