"""Every loop of the corpus with every noise and seed, as one command that can be interrupted at any moment.

    sgoif-bench loops --loops all --noises symmetric-20,class-dependent-20 --seeds 0,1,2 --out FILE.jsonl

Started again with the same file, it computes what is missing and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgoif_bench.command import Say, check_writable, run_grid, say
from sgoif_bench.jobs import Result
from sgoif_bench.loops.grid import KIND, Job
from sgoif_bench.loops.measures import OTHERS
from sgoif_bench.loops.registry import missing_package
from sgoif_bench.loops.runner import Runner
from sgoif_bench.loops.settings import LoopSettings
from sgoif_bench.loops.table import render
from sgoif_bench.progress import Grid

PROGRAM = "python -m sgoif_bench.loops.run"
DEFAULT_OUT = "runs/loops.jsonl"


def quality(job: Job, result: Result) -> str:
    """What a finished run found."""
    if not result.lines:
        return ""
    line = result.lines[0]
    label_score, best = line["metrics"]["label_score"], max(line["metrics"][name] for name in OTHERS)
    changed = "" if line["identical"] else ", TRAINING WAS CHANGED"
    return f"AUPR of the label score {100 * label_score:.1f}, best other {100 * best:.1f}{changed}"


GRID = Grid(KIND, quality, results="runs")


def run_loops(settings: LoopSettings, out: Path, command: str, tell: Say = say) -> dict[str, Any]:
    """Train in the loops of others, with and without the monitor; what --out already holds is not computed again."""
    check_writable(out)
    jobs = settings.jobs()
    left_out = {name: package for name in {job.loop: None for job in jobs} if (package := missing_package(name))}
    for name, package in left_out.items():
        tell(f"the loop {name} is left out: it needs {package} (pip install {package})")
    wanted = [job for job in jobs if job.loop not in left_out]
    return GRID.complete(wanted, Runner(command, tell), out, command, settings.workers) | {"left_out": left_out}


def show(whole: Mapping[str, Any]) -> str:
    """The results as a table."""
    return render(whole["results"]) if whole["results"] else "no results"


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the corpus from the command line; returns the exit code."""
    return run_grid(program, LoopSettings, run_loops, show, arguments, DEFAULT_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
