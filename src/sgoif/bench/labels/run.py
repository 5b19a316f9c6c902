"""Every method on every data set, noise and seed, as one command that can be interrupted at any moment.

    sgoif bench labels --data ROOT --sets cifar10 --noises symmetric-20,class-dependent-20 --methods all --seeds 0,1,2 \
        --out FILE.jsonl

Started again with the same file, it computes what is missing and nothing else. A method that fails is reported on
standard error, the others go on, and the exit code is 1; the next start tries it again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.bench.command import Say, answered, check_writable, choose_device, option_parser, say
from sgoif.bench.labels.grid import Job, Journal, Line, asked_for, pending, to_keep
from sgoif.bench.labels.runner import Result, Runner
from sgoif.bench.labels.settings import LabelsSettings
from sgoif.bench.labels.table import TableSettings, render
from sgoif.bench.labels.workers import results_here, results_in_workers
from sgoif.bench.provenance import command_line, machine, plain, versions

PROGRAM = "python -m sgoif.bench.labels.run"
DEFAULT_OUT = "runs/labels.jsonl"


@dataclass
class Progress:
    """What the person who waits is told."""

    jobs: list[Job]
    workers: int
    tell: Say
    spent: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    finished: int = 0

    def report(self, job: Job, result: Result) -> None:
        """One line for a job that came to an end, and one for each method that failed."""
        self.finished += 1
        self.spent.setdefault((job.set, job.family), []).append(result.seconds)
        auprs = {line["method"]: line["metrics"]["aupr"] for line in result.lines if line["method"] in job.methods}
        found = [f"{name} {100 * aupr:.1f}" for name, aupr in auprs.items() if aupr is not None]
        quality = f": AUPR {', '.join(found)}" if found else ""
        left = "" if self.finished == len(self.jobs) else f"; about {_duration(self._left())} left"
        self.tell(
            f"[{self.finished}/{len(self.jobs)}] {job} took {_duration(result.seconds)}{quality}{left}"
        )  # fmt: skip
        for name, reason in result.failures.items():
            self.tell(f"FAILED {job.set} {job.noise} {name} seed {job.seed}: {reason}")

    def _left(self) -> float:
        """Seconds for the rest, each job taking what its like took, or else the mean of all."""
        everything = [seconds for some in self.spent.values() for seconds in some]
        rest = self.jobs[self.finished :]
        each = (np.mean(self.spent.get((job.set, job.family), everything)) for job in rest)
        return float(sum(each)) / min(self.workers, max(1, len(rest)))


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def run_labels(settings: LabelsSettings, out: Path, command: str, tell: Say = say) -> dict[str, Any]:
    """Run the comparison of methods that find wrong labels; what --out already holds is not computed again."""
    check_writable(out)
    runner = Runner(settings, command, choose_device(settings.device), tell)
    jobs = settings.jobs()
    with Journal(out, tell) as journal:
        todo = pending(jobs, journal.done, settings.remove)
        asked = sum(len(job.methods) for job in jobs)
        tell(f"{asked} results asked for, {asked - sum(len(job.methods) for job in todo)} already in {out}")
        runner.check(todo)
        failed = _run(todo, runner, journal)
        results = asked_for(jobs, journal.done)
    origin = {"command": command, "versions": versions(), "machine": machine(runner.device)}
    return plain({**origin, "results": results, "failed": failed})  # type: ignore[no-any-return]


def _run(jobs: list[Job], runner: Runner, journal: Journal) -> list[Line]:
    workers = min(runner.settings.workers, max(1, len(jobs)))
    progress = Progress(jobs, workers, runner.tell)
    failed: list[Line] = []
    if workers > 1:
        runner.forget()
    stream = results_here(jobs, runner) if workers == 1 else results_in_workers(jobs, runner, workers)
    try:
        for job, result in stream:
            journal.append(to_keep(job, result.lines, journal.done))
            progress.report(job, result)
            where = {"set": job.set, "noise": job.noise, "seed": job.seed}
            failed += [
                {**where, "method": name, "reason": why.splitlines()[-1]} for name, why in result.failures.items()
            ]
    except KeyboardInterrupt:
        kept = len(jobs) - len(pending(jobs, journal.done, runner.settings.remove))
        runner.tell(f"{kept} of {len(jobs)} trainings are kept; the same command goes on from there")
        raise
    finally:
        stream.close()
    return failed


def show(whole: Mapping[str, Any]) -> str:
    """The results as a table: AUPR, or where no label is wrong, what was flagged all the same."""
    for metric in ("aupr", "flagged_share"):
        if any(line["metrics"][metric] is not None for line in whole["results"]):
            return render(whole["results"], TableSettings(metric))
    return f"{len(whole['results'])} results, none with anything to compare"


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the comparison from the command line; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = option_parser(program, LabelsSettings, run_labels.__doc__ or "", DEFAULT_OUT, file="FILE.jsonl")
    parsed = vars(options.parse_args(given))
    out, as_json = Path(parsed.pop("out")), parsed.pop("json")

    def act() -> int:
        whole = run_labels(LabelsSettings(**parsed), out, command_line(program, given))
        print(json.dumps(whole, allow_nan=False) if as_json else show(whole))
        return 1 if whole["failed"] else 0

    return answered(program, act)


if __name__ == "__main__":
    raise SystemExit(main())
