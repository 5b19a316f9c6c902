"""Starting and joining processes that train together: `--nproc` on this machine, `torchrun` or SLURM anywhere."""

from __future__ import annotations

import math
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessContext, ProcessExitedException, ProcessRaisedException, start_processes

from sgoif.errors import RankError, SgoifError
from sgoif.ranks import ALONE, Ranks, SeveralRanks

PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells every process that it starts."""
PATIENCE = timedelta(days=1)
"""How long processes wait for the first one, which may have millions of images to read."""
GRACE = 20.0
"""Seconds that the processes have to end once the first has answered."""


def placed() -> bool:
    """Whether this is one of several processes that torchrun or its like has started."""
    return all(name in os.environ for name in PLACE) and os.environ["WORLD_SIZE"] not in ("0", "1")


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """The processes that train together; this one alone where nobody started several."""
    if not placed() or not dist.is_available():
        yield ALONE
        return
    mine = not dist.is_initialized()
    if mine:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield SeveralRanks()
    finally:
        if mine:
            dist.destroy_process_group()


def choose_gpu() -> None:
    """Give every process of a machine its own GPU."""
    if placed() and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def launch(nproc: int, work: Callable[[], int], others: Callable[[], Any]) -> int:
    """Run `work` in the first of so many processes and `others` in the rest; returns what `work` did.

    Ctrl-C reaches all of them through the terminal, and SIGTERM is passed on: they save what they have and leave. Once
    `work` is done nothing of value is left in any of them, so whoever is then still there after a while is ended.
    """
    with tempfile.TemporaryDirectory(prefix="sgoif-") as folder:
        answer = os.path.join(folder, "answer")
        started = start_processes(
            _process, (nproc, _free_port(), answer, work, others), nprocs=nproc, join=False, start_method="spawn"
        )
        with _passing_on(started.pids()):
            try:
                _wait(started, lambda: os.path.exists(answer))
            except (ProcessExitedException, ProcessRaisedException) as error:
                raise RankError(
                    f"one of {nproc} processes ended unexpectedly, so the others were stopped ({_last_line(error)})"
                ) from error
        with open(answer, encoding="utf-8") as file:
            return int(file.read())


def _wait(started: ProcessContext, done: Callable[[], bool]) -> None:
    """Until all have ended; those that linger for `GRACE` seconds after the work is done are killed."""
    until = math.inf
    while not started.join(timeout=1.0):
        if done():
            until = min(until, time.monotonic() + GRACE)
        if time.monotonic() > until:
            for process in started.processes:
                process.kill()
                process.join()
            return


def _process(
    number: int, nproc: int, port: int, answer: str, work: Callable[[], int], others: Callable[[], Any]
) -> None:
    os.environ.update(
        RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(nproc), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // nproc) if hasattr(os, "sched_getaffinity") else 1)
    if number:
        with suppress(SgoifError, OSError, KeyboardInterrupt):  # the first process says what happened
            others()
        return
    code = work()
    with open(f"{answer}.part", "w", encoding="utf-8") as file:
        file.write(str(code))
    os.replace(file.name, answer)


@contextmanager
def _passing_on(processes: Sequence[int]) -> Iterator[None]:
    """Stay while the processes end: Ctrl-C is theirs, SIGTERM is sent on to them."""

    def send(number: int, _: Any) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.signal(signal.SIGTERM, send)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
