"""The whole command `sgoif audit`, each audit a process with a feature cache of its own, as one command.

    sgoif-bench audits --data ROOT --sets photos,digits --seeds 0,1,2 --threads 2 --jobs 8 --out FILE.jsonl

Started again with the same file, it computes what is missing and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgoif_bench.audits.grid import KIND, Job
from sgoif_bench.audits.runner import Runner
from sgoif_bench.audits.settings import AuditsSettings
from sgoif_bench.audits.table import render
from sgoif_bench.command import Say, check_writable, choose_device, run_grid, say
from sgoif_bench.jobs import Result
from sgoif_bench.progress import Grid

PROGRAM = "python -m sgoif_bench.audits.run"
DEFAULT_OUT = "runs/audits.jsonl"


def quality(job: Job, result: Result) -> str:
    """The AUPR of each audit of a finished job, and the way it took."""
    found = []
    for line in result.lines:
        aupr = line["metrics"]["aupr"]
        shown = "no wrong label" if aupr is None else f"AUPR {100 * aupr:.1f}"
        found.append(f"{shown} by {line['network']} in {line['seconds']:.0f} s")
    return ", ".join(found)


GRID = Grid(KIND, quality, results="audits")


def run_audits(settings: AuditsSettings, out: Path, command: str, tell: Say = say) -> dict[str, Any]:
    """Audit folders with planted wrong labels in several ways; what --out already holds is not computed again."""
    check_writable(out)
    runner = Runner(settings, command, choose_device(settings.device), tell)
    return GRID.complete(settings.asked(), runner, out, command, settings.jobs)


def show(whole: Mapping[str, Any]) -> str:
    """The results as a table."""
    return render(whole["results"]) if whole["results"] else "no results"


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the comparison from the command line; returns the exit code."""
    return run_grid(program, AuditsSettings, run_audits, show, arguments, DEFAULT_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
