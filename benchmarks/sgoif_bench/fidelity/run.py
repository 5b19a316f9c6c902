"""Scores against retraining as one command that can be interrupted at any moment.

    sgoif-bench fidelity --sets digits --wrong-shares 0,0.1 --methods all --out FILE.jsonl

First the truth: hundreds of small trainings, whose answers are kept in a folder beside the result file. Then one more
training, and every method on it. Started again with the same file and folder, it computes what is missing and nothing
else. A library that is not installed or cannot run on a setting has a line with the reason, and is tried again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sgoif_bench.command import Say, check_writable, choose_device, run_grid, say
from sgoif_bench.fidelity.grid import KIND, Job
from sgoif_bench.fidelity.runner import Runner
from sgoif_bench.fidelity.settings import FidelitySettings
from sgoif_bench.fidelity.table import FidelityTableSettings
from sgoif_bench.jobs import Result
from sgoif_bench.progress import Grid
from sgoif_bench.tables.layout import render

PROGRAM = "python -m sgoif_bench.fidelity.run"
DEFAULT_OUT = "runs/fidelity.jsonl"


def quality(job: Job, result: Result) -> str:
    """The LDS of each method of a finished job."""
    found = [f"{line['method']} {line['metrics']['lds']:.3f}" for line in result.lines if line["error"] is None]
    return f"LDS {', '.join(found)}" if found else ""


GRID = Grid(KIND, quality, is_done=lambda job, line: line["error"] is None)


def run_fidelity(settings: FidelitySettings, out: Path, command: str, tell: Say = say) -> dict[str, Any]:
    """Hold influence scores against retraining; what --out and its folder already hold is not computed again."""
    check_writable(out)
    cache = out.with_suffix(".truth") if settings.cache is None else Path(settings.cache)
    check_writable(cache / "truth.npz")
    runner = Runner(settings, command, choose_device(settings.device), cache, tell)

    def truth(todo: Sequence[Job]) -> list[Job]:
        found = runner.truth(todo)
        networks = sum(len(job.truth[1]) * job.truth[0].trainings for job in found if job.truth is not None)
        tell(f"{networks} networks of the truth are still to be trained")
        return found

    return GRID.complete(settings.jobs(), runner, out, command, settings.workers, before=truth)


def show(whole: Mapping[str, Any]) -> str:
    """The results as a table."""
    return render(whole["results"], FidelityTableSettings()) if whole["results"] else "no results"


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the comparison from the command line; returns the exit code."""
    return run_grid(program, FidelitySettings, run_fidelity, show, arguments, DEFAULT_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
