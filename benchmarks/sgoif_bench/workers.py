"""Jobs done one after the other in this process, or at the same time in several.

A worker is given a job at a time and sends back its result. One that dies takes only its job with it; all of them end
when the parent ends, however that comes about.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Generic

import torch

from sgoif.core.user_code import children_import_nothing_from_here
from sgoif_bench.jobs import J, Result, Runner


def results_here(jobs: Iterable[J], runner: Runner[J]) -> Generator[tuple[J, Result], None, None]:
    """Do the jobs in this process."""
    for job in jobs:
        yield job, runner.do(job)


@dataclass
class Worker(Generic[J]):
    """A process that does jobs, and the job it is at."""

    process: SpawnProcess
    connection: Connection
    job: J

    def give(self, job: J) -> None:
        """The next job. A process that is dead already will not answer, and that is noticed then."""
        self.job = job
        with suppress(ConnectionError):
            self.connection.send(job)

    def end(self) -> str:
        """Make sure that the process is gone, and say how it ended."""
        self.connection.close()
        self.process.join(timeout=1)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        code = self.process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def results_in_workers(jobs: Sequence[J], runner: Runner[J], count: int) -> Generator[tuple[J, Result], None, None]:
    """Do the jobs in so many processes. One that dies takes its job with it and is replaced."""
    waiting, running = list(reversed(jobs)), dict[int, Worker[J]]()
    try:
        while waiting or running:
            for number in range(count):
                if waiting and number not in running:
                    running[number] = _start(number, count, runner, waiting.pop())
            ready = wait([worker.connection for worker in running.values()])
            for number, worker in list(running.items()):
                if worker.connection not in ready:
                    continue
                job = worker.job
                try:
                    result = worker.connection.recv()
                except (EOFError, ConnectionError):
                    how = running.pop(number).end()
                    yield job, Result(failures=dict.fromkeys(job.methods, f"its process died ({how})"))
                    continue
                if waiting:
                    worker.give(waiting.pop())
                else:
                    running.pop(number).end()
                yield job, result
    finally:
        for worker in running.values():
            worker.process.kill()
            worker.end()


def _start(number: int, count: int, runner: Runner[J], job: J) -> Worker[J]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    theirs_alone = runner.moved(device_of(number, runner.device))
    threads = max(1, (os.cpu_count() or 1) // count)
    process = context.Process(target=_work, args=(theirs, theirs_alone, threads))
    with _ignored_interrupts(), children_import_nothing_from_here():
        process.start()
    theirs.close()
    worker = Worker(process, ours, job)
    worker.give(job)
    return worker


def device_of(number: int, device: torch.device) -> torch.device:
    """Where a worker trains: GPUs are dealt out in turn."""
    return torch.device("cuda", number % torch.cuda.device_count()) if device.type == "cuda" else device


@contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """A process started here is deaf to Ctrl-C from its first moment: the parent answers it, and ends its workers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(connection: Connection, runner: Runner[J], threads: int) -> None:
    """The life of a worker: a job comes in, its result goes out, until the other end closes."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    with suppress(EOFError, ConnectionError):
        while True:
            connection.send(runner.do(connection.recv()))


def _leave_with_parent() -> None:
    """A worker must not train on for nobody when the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
