"""Findings planted in a folder of images, and what the checks find there and in its clean twin, as one command.

    sgoif-bench findings --data ROOT --sets photos,cifar10 --seeds 0,1,2 --backbone lite0 --out FILE.jsonl

Started again with the same file, it computes what is missing and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgoif_bench.command import Say, check_writable, choose_device, run_grid, say
from sgoif_bench.findings.grid import KIND, Job
from sgoif_bench.findings.runner import Runner
from sgoif_bench.findings.settings import FindingsSettings
from sgoif_bench.findings.table import render
from sgoif_bench.jobs import Result
from sgoif_bench.progress import Grid

PROGRAM = "python -m sgoif_bench.findings.run"
DEFAULT_OUT = "runs/findings.jsonl"


def quality(job: Job, result: Result) -> str:
    """The kinds of a finished job that were found least, and those with false alarms."""
    low = [
        f"{line['kind']} {line['metrics']['recall']:.0%}" for line in result.lines if line["metrics"]["recall"] < 0.9
    ]
    alarms = [
        f"{line['kind']} {line['metrics']['alarms']:.1f}" for line in result.lines if line["metrics"]["alarms"] > 1
    ]
    return f"below 90%: {', '.join(low) or 'none'}; above 1 alarm in 1,000: {', '.join(alarms) or 'none'}"


GRID = Grid(KIND, quality, results="kinds")


def run_findings(settings: FindingsSettings, out: Path, command: str, tell: Say = say) -> dict[str, Any]:
    """Plant findings of every kind and look for them; what --out already holds is not computed again."""
    check_writable(out)
    runner = Runner(settings, command, choose_device(settings.device), tell)
    return GRID.complete(settings.asked(), runner, out, command, settings.jobs)


def show(whole: Mapping[str, Any]) -> str:
    """The results as a table."""
    return render(whole["results"]) if whole["results"] else "no results"


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the comparison from the command line; returns the exit code."""
    return run_grid(program, FindingsSettings, run_findings, show, arguments, DEFAULT_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
