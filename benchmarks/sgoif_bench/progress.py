"""All jobs of a grid done, written down as they come to an end, and told to the person who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic

import numpy as np

from sgoif.core.provenance import machine, plain, versions
from sgoif_bench.command import Say
from sgoif_bench.jobs import KJ, J, Result, Runner
from sgoif_bench.journal import Journal, K, Kind, Line, read_lines
from sgoif_bench.workers import results_here, results_in_workers


@dataclass
class Progress(Generic[J]):
    """What the person who waits is told."""

    jobs: Sequence[J]
    workers: int
    tell: Say
    quality: Callable[[J, Result], str] = lambda job, result: ""
    """What a finished job found, in a few words."""
    spent: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    finished: int = 0

    def report(self, job: J, result: Result) -> None:
        """One line for a job that came to an end, and one for each method that failed."""
        self.finished += 1
        self.spent.setdefault((job.set, job.family), []).append(result.seconds)
        found = self.quality(job, result)
        quality = f": {found}" if found else ""
        left = "" if self.finished == len(self.jobs) else f"; about {duration(self._left())} left"
        self.tell(f"[{self.finished}/{len(self.jobs)}] {job} took {duration(result.seconds)}{quality}{left}")
        for name, reason in result.failures.items():
            self.tell(f"FAILED {job.called(name)}: {reason}")

    def _left(self) -> float:
        """Seconds for the rest, each job taking what its like took, or else the mean of all."""
        everything = [seconds for some in self.spent.values() for seconds in some]
        rest = self.jobs[self.finished :]
        each = (np.mean(self.spent.get((job.set, job.family), everything)) for job in rest)
        return float(sum(each)) / min(self.workers, max(1, len(rest)))


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def carry_out(
    jobs: Sequence[J],
    runner: Runner[J],
    workers: int,
    journal: Journal[K],
    *,
    keep: Callable[[J, list[Line]], list[Line]],
    left: Callable[[], int],
    quality: Callable[[J, Result], str],
) -> list[Line]:
    """Do the jobs, in several processes where asked, and return what failed.

    `keep` says which lines of a finished job are written, `left` how many jobs still have something to do.
    """
    workers = min(workers, max(1, len(jobs)))
    progress = Progress(jobs, workers, runner.tell, quality)
    failed: list[Line] = []
    if workers > 1:
        runner.forget()
    stream = results_here(jobs, runner) if workers == 1 else results_in_workers(jobs, runner, workers)
    try:
        for job, result in stream:
            journal.append(keep(job, result.lines))
            progress.report(job, result)
            failed += [
                {**job.place, "method": name, "reason": why.splitlines()[-1]} for name, why in result.failures.items()
            ]
    except KeyboardInterrupt:
        runner.tell(f"{len(jobs) - left()} of {len(jobs)} trainings are kept; the same command goes on from there")
        raise
    finally:
        stream.close()
    return failed


@dataclass(frozen=True)
class Grid(Generic[KJ]):
    """What a benchmark says about its jobs and its result file."""

    kind: Kind[Any]
    quality: Callable[[KJ, Result], str]
    """What a finished job found, in a few words."""
    is_done: Callable[[KJ, Line], bool] = lambda job, line: True
    """Whether a line of a job has all that is asked for."""
    keep: Callable[[KJ, list[Line], Mapping[Any, Line]], list[Line]] = lambda job, lines, done: lines
    """The lines of a finished job that belong in the file."""
    results: str = "results"
    """What a job is asked for, in the plural."""

    def pending(self, jobs: Iterable[KJ], done: Mapping[Any, Line]) -> list[KJ]:
        """The jobs that still have something to do, each with the methods that are missing."""
        left = []
        for job in jobs:
            lines = {method: done.get(job.key(method)) for method in job.methods}
            missing = tuple(name for name, line in lines.items() if line is None or not self.is_done(job, line))
            if missing:
                left.append(job if missing == job.methods else replace(job, methods=missing))  # type: ignore[type-var]
        return left

    def asked_for(self, jobs: Iterable[KJ], done: Mapping[Any, Line]) -> list[Line]:
        """What the file holds of these jobs."""
        keys = (job.key(method) for job in jobs for method in job.methods)
        return [done[key] for key in keys if key in done]

    def left(self, jobs: Sequence[KJ], out: Path) -> Sequence[KJ]:
        """What a file does not hold yet, for a look before it is opened for writing."""
        lines = read_lines([out], self.kind) if out.is_file() else []
        return self.pending(jobs, {self.kind.key_of(line): line for line in lines})

    def complete(
        self,
        jobs: Sequence[KJ],
        runner: Runner[KJ],
        out: Path,
        command: str,
        workers: int,
        before: Callable[[Sequence[KJ]], Sequence[KJ]] | None = None,
    ) -> dict[str, Any]:
        """Compute what the file does not hold yet; the whole result, with what failed.

        `before` names jobs that the others need and that leave no lines. They then have the workers; the others are
        done by one process, if none of the first failed.
        """
        runner.check(self.left(jobs, out))
        with Journal(out, self.kind, runner.tell) as journal:
            todo = self.pending(jobs, journal.done)
            asked = sum(len(job.methods) for job in jobs)
            missing = sum(len(job.methods) for job in todo)
            runner.tell(f"{asked} {self.results} asked for, {asked - missing} already in {out}")
            stages = [(todo, workers)] if before is None else [(before(todo), workers), (todo, 1)]
            failed: list[Line] = []
            for some, processes in stages:
                if failed:
                    break
                failed = carry_out(
                    some,
                    runner,
                    processes,
                    journal,
                    keep=lambda job, lines: self.keep(job, lines, journal.done),
                    left=lambda: len(self.pending(todo, journal.done)),
                    quality=self.quality,
                )
            results = self.asked_for(jobs, journal.done)
        origin = {"command": command, "versions": versions(), "machine": machine(runner.device)}
        return plain({**origin, "results": results, "failed": failed})  # type: ignore[no-any-return]
