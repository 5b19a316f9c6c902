"""Every way to train on every data set, noise and seed, as one command that can be interrupted at any moment.

    sgoif-bench curriculum --data ROOT --sets cifar10 --noises class-dependent-20,symmetric-40,none --methods all \
        --seeds 0,1,2 --out FILE.jsonl

Started again with the same file, it computes what is missing and nothing else. A method that fails is reported on
standard error, the others go on, and the exit code is 1; the next start tries it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgoif_bench.command import Say, check_writable, choose_device, run_grid, say
from sgoif_bench.curriculum.grid import KIND, Job
from sgoif_bench.curriculum.runner import Runner
from sgoif_bench.curriculum.settings import CurriculumBenchSettings
from sgoif_bench.curriculum.table import CurriculumTableSettings
from sgoif_bench.jobs import Result
from sgoif_bench.progress import Grid
from sgoif_bench.tables.layout import render

PROGRAM = "python -m sgoif_bench.curriculum.run"
DEFAULT_OUT = "runs/curriculum.jsonl"


def quality(job: Job, result: Result) -> str:
    """The accuracy at the end of a finished job."""
    return ", ".join(f"test accuracy {100 * line['metrics']['accuracy']:.1f}" for line in result.lines)


GRID = Grid(KIND, quality)


def run_curriculum(settings: CurriculumBenchSettings, out: Path, command: str, tell: Say = say) -> dict[str, Any]:
    """Compare ways to train despite wrong labels by test accuracy; what --out already holds is not computed again."""
    check_writable(out)
    runner = Runner(settings, command, choose_device(settings.device), tell)
    return GRID.complete(settings.jobs(), runner, out, command, settings.workers)


def show(whole: Mapping[str, Any]) -> str:
    """The results as a table."""
    return render(whole["results"], CurriculumTableSettings()) if whole["results"] else "no results"


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the comparison from the command line; returns the exit code."""
    return run_grid(program, CurriculumBenchSettings, run_curriculum, show, arguments, DEFAULT_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
