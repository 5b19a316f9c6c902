"""Deletions of single examples and of groups, predicted and retrained, as one command that can be interrupted.

    sgoif-bench unlearning --sets digits --seeds 0,1,2 --out FILE.jsonl

Started again with the same file, it computes what is missing and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgoif_bench.command import Say, check_writable, choose_device, run_grid, say
from sgoif_bench.jobs import Result
from sgoif_bench.progress import Grid
from sgoif_bench.unlearning.grid import KIND, Job
from sgoif_bench.unlearning.runner import Runner
from sgoif_bench.unlearning.settings import UnlearningSettings
from sgoif_bench.unlearning.table import render

PROGRAM = "python -m sgoif_bench.unlearning.run"
DEFAULT_OUT = "runs/unlearning.jsonl"


def quality(job: Job, result: Result) -> str:
    """The main figures of a finished run."""
    if not result.lines:
        return ""
    metrics = result.lines[0]["metrics"]
    found = [f"{what} {metrics[what]['spearman']['newton']:.3f}" for what in ("single", "group")]
    return f"Spearman of one Newton step: {', '.join(found)}"


GRID = Grid(KIND, quality, results="runs")


def run_unlearning(settings: UnlearningSettings, out: Path, command: str, tell: Say = say) -> dict[str, Any]:
    """Delete examples and compare predictions with retraining; what --out already holds is not computed again."""
    check_writable(out)
    runner = Runner(settings, command, choose_device(settings.device), tell)
    return GRID.complete(settings.jobs(), runner, out, command, settings.workers)


def show(whole: Mapping[str, Any]) -> str:
    """The results as a table."""
    return render(whole["results"]) if whole["results"] else "no results"


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the comparison from the command line; returns the exit code."""
    return run_grid(program, UnlearningSettings, run_unlearning, show, arguments, DEFAULT_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
