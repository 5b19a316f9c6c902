"""Every method under every attack, as one command that can be interrupted at any moment.

    sgoif-bench poisoning --data ROOT --sets cifar10 --attacks badnets-1,blended-1 --seeds 0,1,2 --out FILE.jsonl

Started again with the same file, it computes what is missing and nothing else. A method that fails is reported on
standard error, the others go on, and the exit code is 1; the next start tries it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgoif_bench.command import Say, check_writable, choose_device, run_grid, say
from sgoif_bench.jobs import Result
from sgoif_bench.poisoning.grid import KIND, Job
from sgoif_bench.poisoning.runner import Runner
from sgoif_bench.poisoning.settings import PoisoningSettings
from sgoif_bench.poisoning.table import PoisoningTableSettings
from sgoif_bench.progress import Grid
from sgoif_bench.tables.layout import render

PROGRAM = "python -m sgoif_bench.poisoning.run"
DEFAULT_OUT = "runs/poisoning.jsonl"


def quality(job: Job, result: Result) -> str:
    """The AUPR of each method of a finished job, or what it removes where there is no poison."""
    found = []
    for line in result.lines:
        aupr, selected = line["metrics"]["aupr"], line["metrics"]["selected"]
        found.append(f"{line['method']} " + (f"removes {selected}" if aupr is None else f"{100 * aupr:.1f}"))
    return f"AUPR {', '.join(found)}" if found else ""


def run_poisoning(settings: PoisoningSettings, out: Path, command: str, tell: Say = say) -> dict[str, Any]:
    """Run the comparison of methods that find poisoned examples; what --out already holds is not computed again."""
    check_writable(out)
    runner = Runner(settings, command, choose_device(settings.device), tell)
    again = settings.retrained()
    grid = Grid(KIND, quality, lambda job, line: line["method"] not in again or bool(line["retrained"]))
    return grid.complete(settings.jobs(), runner, out, command, settings.workers)


def show(whole: Mapping[str, Any]) -> str:
    """The results as tables: AUPR, or where nothing is poisoned, how much is removed all the same."""
    for metric in ("aupr", "selected"):
        if any(line["metrics"][metric] is not None for line in whole["results"]):
            return render(whole["results"], PoisoningTableSettings(metric))
    return "no results"


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the comparison from the command line; returns the exit code."""
    return run_grid(program, PoisoningSettings, run_poisoning, show, arguments, DEFAULT_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
