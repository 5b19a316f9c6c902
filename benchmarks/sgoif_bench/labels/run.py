"""Every method on every data set, noise and seed, as one command that can be interrupted at any moment.

    sgoif-bench labels --data ROOT --sets cifar10 --noises symmetric-20,class-dependent-20 --methods all --seeds 0,1,2 \
        --out FILE.jsonl

Started again with the same file, it computes what is missing and nothing else. A method that fails is reported on
standard error, the others go on, and the exit code is 1; the next start tries it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgoif_bench.command import Say, check_writable, choose_device, run_grid, say
from sgoif_bench.jobs import Result
from sgoif_bench.journal import Line
from sgoif_bench.labels.grid import KIND, Job, LabelsGrid, to_keep
from sgoif_bench.labels.runner import Runner
from sgoif_bench.labels.settings import LabelsSettings
from sgoif_bench.labels.table import TableSettings
from sgoif_bench.tables.layout import render

PROGRAM = "python -m sgoif_bench.labels.run"
DEFAULT_OUT = "runs/labels.jsonl"


def quality(job: Job, result: Result) -> str:
    """The AUPR of each method of a finished job."""
    auprs = {line["method"]: line["metrics"]["aupr"] for line in result.lines if line["method"] in job.methods}
    found = [f"{name} {100 * aupr:.1f}" for name, aupr in auprs.items() if aupr is not None]
    return f"AUPR {', '.join(found)}" if found else ""


def run_labels(settings: LabelsSettings, out: Path, command: str, tell: Say = say) -> dict[str, Any]:
    """Run the comparison of methods that find wrong labels; what --out already holds is not computed again."""
    check_writable(out)
    runner = Runner(settings, command, choose_device(settings.device), tell)
    share = settings.remove

    def is_done(job: Job, line: Line) -> bool:
        return share is None or (line.get("removal") or {}).get("share") == share

    grid = LabelsGrid(KIND, quality, is_done, to_keep)
    return grid.complete(settings.jobs(), runner, out, command, settings.workers)


def show(whole: Mapping[str, Any]) -> str:
    """The results as a table: AUPR, or where no label is wrong, what was flagged all the same."""
    for metric in ("aupr", "flagged_share"):
        if any(line["metrics"][metric] is not None for line in whole["results"]):
            return render(whole["results"], TableSettings(metric))
    return f"{len(whole['results'])} results, none with anything to compare"


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the comparison from the command line; returns the exit code."""
    return run_grid(program, LabelsSettings, run_labels, show, arguments, DEFAULT_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
