"""Every length of a run with every number of anchors, noise and seed, as one command that can be interrupted.

    sgoif-bench lengths --data ROOT --steps 20,75,300,3000 --anchors 50,200,1000 --seeds 0,1,2 --out FILE.jsonl

ROOT holds the files of MNIST; without it scikit-learn's digits are used, of which there are 1,797. Started again with
the same file, it computes what is missing and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from sgoif.errors import SettingError
from sgoif_bench.command import Device, Say, check_writable, choose_device, listed, run_grid, say, seeds_of, setting
from sgoif_bench.jobs import Result
from sgoif_bench.labels.noises import parse
from sgoif_bench.lengths.grid import KIND, Job
from sgoif_bench.lengths.runner import Runner
from sgoif_bench.lengths.table import render
from sgoif_bench.loops.table import compared
from sgoif_bench.progress import Grid

PROGRAM = "python -m sgoif_bench.lengths.run"
DEFAULT_OUT = "runs/lengths.jsonl"
LEAST = {"steps": 2, "anchors": 20}


@dataclass(frozen=True)
class LengthSettings:
    """Lengths, numbers of anchors, noises and seeds."""

    data: str | None = setting(None, help="folder that holds the files of MNIST; unset: scikit-learn's digits")
    steps: str = setting("20,75,300,3000", help="training steps of a run, separated by commas")
    anchors: str = setting("50,200,1000", help="held-out examples beside it, separated by commas")
    noises: str = setting(
        "symmetric-20,class-dependent-20", help="kinds of wrong labels, separated by commas, as in bench labels"
    )
    seeds: str = setting("0,1,2", help="seeds of noise, examples, weights and batches, separated by commas")
    workers: int = setting(1, help="processes that train at the same time, dealt out over the GPUs")
    device: Device = setting("auto", help="where to train")

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SettingError(f"workers = {self.workers} must be at least 1")
        for noise in listed(self.noises, "noises"):
            if parse(noise).kind == "none":
                raise SettingError("--noises none leaves nothing to find; name noises such as symmetric-20")
        self.jobs()

    def jobs(self) -> list[Job]:
        """Everything that is asked for, done or not; the longest runs first, as they take longest."""
        name, steps, anchors = (
            "digits" if self.data is None else "mnist",
            self._counts("steps"),
            self._counts("anchors"),
        )
        grid = product(sorted(steps, reverse=True), anchors, listed(self.noises, "noises"), seeds_of(self.seeds))
        return [Job(name, *place) for place in grid]

    def _counts(self, name: str) -> list[int]:
        words = listed(getattr(self, name), name)
        for word in words:
            if not word.isdecimal() or int(word) < LEAST[name]:
                raise SettingError(
                    f"--{name} takes whole numbers from {LEAST[name]} up, separated by commas; got {word!r}"
                )
        return [int(word) for word in words]


def quality(job: Job, result: Result) -> str:
    """What a finished run found."""
    if not result.lines:
        return ""
    cell = compared(result.lines)
    return f"AUPR of the label score {cell.label_score:.1f}, best other {cell.other:.1f}"


GRID = Grid(KIND, quality, results="runs")


def run_lengths(settings: LengthSettings, out: Path, command: str, tell: Say = say) -> dict[str, Any]:
    """Train for few and for many steps beside few and many anchors; what --out already holds is not computed again."""
    check_writable(out)
    runner = Runner(settings.data, command, choose_device(settings.device), tell)
    return GRID.complete(settings.jobs(), runner, out, command, settings.workers)


def show(whole: Mapping[str, Any]) -> str:
    """The results as a table."""
    return render(whole["results"]) if whole["results"] else "no results"


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the grid from the command line; returns the exit code."""
    return run_grid(program, LengthSettings, run_lengths, show, arguments, DEFAULT_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
