"""Starting and joining processes that train together: `--nproc` on this machine, `torchrun` or SLURM anywhere."""

import atexit
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

from sgoif.core.user_code import children_import_nothing_from_here
from sgoif.distributed.communicator import SINGLE_PROCESS, Communicator, ProcessGroupCommunicator
from sgoif.errors import RankError, SgoifError

PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells every process that it starts."""
JOIN_TIMEOUT = timedelta(days=1)
"""How long processes wait for the first one, which may have millions of images to read."""
GRACE = 20.0
"""Seconds that the processes have to end once the first has answered or one of them has left."""
STOPPING = 60.0
"""Seconds that they have to save and to leave once they were asked to stop."""
_outlived: list[Any] = []
"""Process groups that were left. A model wrapped for several processes must not be the last to know its group: it would
wait for the group's threads when it goes, and they may wait for the interpreter, which it holds."""
atexit.register(_outlived.clear)


class Stopped(KeyboardInterrupt):
    """The processes were asked to stop by a signal, and went before the first could tell what is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.number = number


class Request:
    """Whether somebody asked the processes to stop, by which signal, and when."""

    number: int | None = None
    since = math.inf


def placed() -> bool:
    """Whether this is one of several processes that torchrun or its like has started."""
    return all(name in os.environ for name in PLACE) and os.environ["WORLD_SIZE"] not in ("0", "1")


@contextmanager
def joined(device: torch.device) -> Iterator[Communicator]:
    """The processes that train together; this one alone where nobody started several."""
    if not placed() or not dist.is_available():
        yield SINGLE_PROCESS
        return
    mine = not dist.is_initialized()
    if mine:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=JOIN_TIMEOUT)
    try:
        yield ProcessGroupCommunicator()
    finally:
        if mine:
            _outlived.append(dist.group.WORLD)
            dist.destroy_process_group()


def choose_gpu() -> None:
    """Give every process of a machine its own GPU."""
    if placed() and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def launch(nproc: int, work: Callable[[], int], others: Callable[[], Any]) -> int:
    """Run `work` in the first of so many processes and `others` in the rest; returns what `work` did.

    Ctrl-C reaches all of them through the terminal, and SIGTERM is passed on: they save what they have and leave, or
    are ended where they do not; `Stopped` if `work` had no time to return. They belong together: once one of them has
    left nothing of value is done in the others, so whoever is then still there after a while is ended too.
    """
    with tempfile.TemporaryDirectory(prefix="sgoif-") as folder:
        answer = os.path.join(folder, "answer")
        with children_import_nothing_from_here():
            started = start_processes(
                _process, (nproc, _free_port(), answer, work, others), nprocs=nproc, join=False, start_method="spawn"
            )
        with _passing_on(started.pids()) as request:
            reason = _wait(started, request, lambda: os.path.exists(answer))
        if os.path.exists(answer) and (reason is None or request.number is not None):
            with open(answer, encoding="utf-8") as file:
                return int(file.read())
        if request.number is not None:
            raise Stopped(request.number)
        told = "it left without a word" if reason is None else _last_line(reason)
        raise RankError(f"one of {nproc} processes ended unexpectedly, so the others were stopped ({told})") from reason


def _wait(started: ProcessContext, request: Request, done: Callable[[], bool]) -> Exception | None:
    """Until all have ended, waiting as long as it helps; returns how one of them failed."""
    until = math.inf
    try:
        while not started.join(timeout=1.0, grace_period=GRACE):
            if done() or not all(process.is_alive() for process in started.processes):
                until = min(until, time.monotonic() + GRACE)
            if time.monotonic() > min(until, request.since + STOPPING):
                for process in started.processes:
                    process.kill()
                    process.join()
                return None
    except (ProcessExitedException, ProcessRaisedException) as error:
        return error
    return None


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
def _passing_on(processes: Sequence[int]) -> Iterator[Request]:
    """Stay while the processes end: Ctrl-C has reached them too, SIGTERM is sent on to them."""
    request = Request()

    def hear(number: int, _: Any) -> None:
        request.number, request.since = number, min(request.since, time.monotonic())
        for process in processes if number == signal.SIGTERM else ():
            with suppress(ProcessLookupError):
                os.kill(process, number)

    before = signal.signal(signal.SIGINT, hear), signal.signal(signal.SIGTERM, hear)
    try:
        yield request
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
