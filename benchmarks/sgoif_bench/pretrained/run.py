"""What finds wrong labels with a pretrained network, on every data set, noise and seed, as one command.

    sgoif-bench pretrained --data ROOT --sets photos,digits --methods frozen --seeds 0,1,2 --out FILE.jsonl

Started again with the same file, it computes what is missing and nothing else. Features and out-of-fold probabilities
stay in --scratch. Where cleanlab is not installed, its methods leave their probabilities there and no line; the same
command where it is installed scores them without training again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgoif.backbones import load_backbone
from sgoif.errors import SettingError
from sgoif_bench.command import Say, check_writable, choose_device, run_grid, say
from sgoif_bench.jobs import Result
from sgoif_bench.pretrained.grid import KIND, Job
from sgoif_bench.pretrained.runner import Runner
from sgoif_bench.pretrained.settings import PretrainedSettings
from sgoif_bench.pretrained.table import PretrainedTableSettings
from sgoif_bench.progress import Grid
from sgoif_bench.tables.layout import render

PROGRAM = "python -m sgoif_bench.pretrained.run"
DEFAULT_OUT = "runs/pretrained.jsonl"


def quality(job: Job, result: Result) -> str:
    """The AUPR of each method of a finished job."""
    found = {line["method"]: line["metrics"]["aupr"] for line in result.lines}
    return ", ".join(f"AUPR {100 * aupr:.1f} of {name}" for name, aupr in found.items() if aupr is not None)


GRID = Grid(KIND, quality)


def run_pretrained(settings: PretrainedSettings, out: Path, command: str, tell: Say = say) -> dict[str, Any]:
    """Compare what finds wrong labels from a pretrained network; what --out already holds is not computed again."""
    check_writable(out)
    backbone = load_backbone(settings.backbone)
    if backbone is None:
        raise SettingError(f"--backbone {settings.backbone} is no network; choose one, such as lite0")
    runner = Runner(settings, backbone, command, choose_device(settings.device), tell)
    return GRID.complete(settings.jobs(backbone), runner, out, command, 1)


def show(whole: Mapping[str, Any]) -> str:
    """The results as a table."""
    lines = [line for line in whole["results"] if line["metrics"]["aupr"] is not None]
    return render(lines, PretrainedTableSettings()) if lines else "no results"


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the comparison from the command line; returns the exit code."""
    return run_grid(program, PretrainedSettings, run_pretrained, show, arguments, DEFAULT_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
