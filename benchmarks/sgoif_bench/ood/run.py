"""Every detector on every in-distribution set and seed, as one command that can be interrupted at any moment.

    sgoif-bench ood --data ROOT --sets mnist,cifar10 --protocol v1.5 --methods all --seeds 0,1,2 --out FILE.jsonl

Started again with the same file, it computes what is missing and nothing else. A method that fails is reported on
standard error, the others go on, and the exit code is 1; the next start tries it again. An out-of-distribution set that
is not below ROOT is named and left out, and made up for when it is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgoif_bench.command import Say, check_writable, choose_device, run_grid, say
from sgoif_bench.jobs import Result
from sgoif_bench.ood.grid import KIND, Job
from sgoif_bench.ood.runner import Runner
from sgoif_bench.ood.settings import OodSettings
from sgoif_bench.ood.table import OodTableSettings, render
from sgoif_bench.progress import Grid

PROGRAM = "python -m sgoif_bench.ood.run"
DEFAULT_OUT = "runs/ood.jsonl"


def quality(job: Job, result: Result) -> str:
    """The mean AUROC of each method of a finished job."""
    found = [f"{line['method']} {100 * line['metrics']['mean_auroc']:.1f}" for line in result.lines]
    return f"mean AUROC {', '.join(found)}" if found else ""


def run_ood(settings: OodSettings, out: Path, command: str, tell: Say = say) -> dict[str, Any]:
    """Run the comparison of out-of-distribution detectors; what --out already holds is not computed again."""
    check_writable(out)
    runner = Runner(settings, command, choose_device(settings.device), tell)
    for name in settings.chosen()[1]:
        tell(f"{name} is left out: it trains with outliers; give --outliers, such as procedural")
    there = runner.there(settings.trainings())
    grid = Grid(KIND, quality, lambda job, line: set(there[job.set]) <= set(line["ood"]))
    return grid.complete(settings.jobs(), runner, out, command, settings.workers)


def show(whole: Mapping[str, Any]) -> str:
    """The results as a table."""
    return render(whole["results"], OodTableSettings()) if whole["results"] else "no results"


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the comparison from the command line; returns the exit code."""
    return run_grid(program, OodSettings, run_ood, show, arguments, DEFAULT_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
