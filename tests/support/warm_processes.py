"""Processes that need not import torch again: they are forked from a server that has.

Importing torch takes two seconds of a core, its first optimizer two more, which is far more than a small run. So one
server for each worker of the tests imports what others wrote, once, and nothing of ours. What it forks is a process
like any other, with streams, folder and variables of its own, to be signalled and killed; it imports our sources
itself. Only what happens while Python starts or ends needs a fresh interpreter.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from torch.multiprocessing.spawn import start_processes

IMPORTED = ["torch._dynamo", "torch.nn.parallel", "torch.distributed.fsdp", "pandas", "pyarrow.parquet",
            "matplotlib.figure", "PIL.Image", "rich.table", "sklearn.datasets", "typer"]  # fmt: skip
multiprocessing.set_forkserver_preload(IMPORTED)
SERVER = multiprocessing.get_context("forkserver")
COMMAND = "import sys; from sgoif.cli import main; sys.exit(main(sys.argv[1:]))"
"""What `python -m sgoif` does."""


class WarmProcess:
    """A running process, with the methods of `subprocess.Popen` that tests use; its streams are pipes of text."""

    def __init__(self, act: Callable[[], Any], cwd: Path | None = None, **variables: str) -> None:
        ends = [SERVER.Pipe(duplex=False) for _ in range(3)]
        (mine, out, err), (stdin, stdout, stderr) = zip(*(ends[0][::-1], *ends[1:]), strict=True)
        given = (stdin, stdout, stderr), act, os.fspath(cwd or Path.cwd()), {**os.environ, **variables}
        self._process = SERVER.Process(target=_run, args=given)
        self._process.start()
        for end in (stdin, stdout, stderr):
            end.close()
        self.stdin, self.stdout, self.stderr = _text(mine, "w"), _text(out, "r"), _text(err, "r")
        self.pid = int(self._process.pid or 0)

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float = 240) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a warm process", timeout)
        return self.returncode

    def communicate(self, timeout: float = 240) -> tuple[str, str]:
        """Close its input and wait for its end; what is left in both of its streams."""
        self.stdin.close()
        read: dict[IO[str], str] = {}
        readers = [threading.Thread(target=lambda s=stream: read.update({s: s.read()}), daemon=True)  # type: ignore[misc]
                   for stream in (self.stdout, self.stderr)]  # fmt: skip
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return read[self.stdout], read[self.stderr]

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_warm_processes(*given: Any, **options: Any) -> Any:
    """`torch.multiprocessing.start_processes`, without the wait for imports."""
    return start_processes(*given, **{**options, "start_method": "forkserver"})


def python(program: str, *words: str, cwd: Path | None = None, **variables: str) -> WarmProcess:
    """What `python -c PROGRAM WORDS` does."""
    return WarmProcess(partial(_execute, program, words), cwd, **variables)


def sgoif(*words: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end, in `cwd`."""
    process = python(COMMAND, *words, cwd=cwd, **variables)
    try:
        out, err = process.communicate()
    finally:
        process.kill()
    return subprocess.CompletedProcess(["sgoif", *words], process.wait(), out, err)


def _execute(program: str, words: tuple[str, ...]) -> None:
    sys.argv = ["-c", *words]
    exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})


def _run(ends: tuple[Connection, ...], act: Callable[[], Any], cwd: str, variables: Mapping[str, str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by all that a shell starts in the background
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    act()


def _text(end: Any, mode: str) -> IO[str]:
    """The end of a pipe as a file of its own."""
    file = os.dup(end.fileno())
    end.close()
    return io.TextIOWrapper(open(file, f"{mode}b"), encoding="utf-8", write_through=mode == "w")  # type: ignore[arg-type]
