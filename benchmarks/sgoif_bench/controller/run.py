"""Bases, forms of the controller and parts over data sets, noises and seeds, as one command that can be interrupted.

    sgoif-bench controller --data ROOT --sets mnist,cifar10 --noises symmetric-20,class-dependent-20 --out FILE.jsonl

Started again with the same file, it computes what is missing and nothing else. digits need no ROOT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from sgoif.errors import SettingError
from sgoif_bench.command import Device, Say, check_writable, choose_device, listed, run_grid, say, seeds_of, setting
from sgoif_bench.controller.grid import KIND, Job
from sgoif_bench.controller.runner import Runner
from sgoif_bench.controller.table import render
from sgoif_bench.controller.variants import FULL, VARIANTS
from sgoif_bench.jobs import Result
from sgoif_bench.labels.noises import parse
from sgoif_bench.labels.recipes import training_for
from sgoif_bench.progress import Grid

PROGRAM = "python -m sgoif_bench.controller.run"
DEFAULT_OUT = "runs/controller.jsonl"


@dataclass(frozen=True)
class ControllerSettings:
    """One grid. What is left unset comes from the data set's recipe."""

    data: str | None = setting(None, help="folder that holds the data sets; digits needs none")
    sets: str = setting("digits", help="data sets, separated by commas, as in bench labels")
    noises: str = setting(
        "symmetric-20,class-dependent-20,matrix-40-sparsity-0.6", help="kinds of wrong labels, as in bench labels"
    )
    bases: str = setting(",".join(VARIANTS), help="what the monitors have in common, separated by commas")
    variants: str = setting("all", help="which monitors of every base, separated by commas; full is the base itself")
    seeds: str = setting("0,1,2", help="seeds of noise, split, initial weights and batches, separated by commas")
    epochs: int | None = setting(None, help="epochs of training; unset: by data set")
    model: str | None = setting(None, help="network, as in bench labels; unset: by data set")
    anchors: int | None = setting(None, help="held-out examples, with their noisy labels; unset: by data set")
    limit: int | None = setting(None, help="use only so many examples of each data set")
    workers: int = setting(1, help="processes that train at the same time, dealt out over the GPUs")
    device: Device = setting("auto", help="where to train")

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SettingError(f"workers = {self.workers} must be at least 1")
        for base in listed(self.bases, "bases"):
            if base not in VARIANTS:
                raise SettingError(f"there is no base {base!r}; choose from {', '.join(VARIANTS)}")
        known = [name for base in listed(self.bases, "bases") for name in VARIANTS[base]]
        for name in self.chosen or ():
            if name not in known:
                raise SettingError(f"there is no variant {name!r}; choose from {', '.join(dict.fromkeys(known))}")
        for noise in listed(self.noises, "noises"):
            if parse(noise).kind in ("none", "human"):
                raise SettingError(f"--noises {noise} cannot be judged here; name noises such as symmetric-20")
        self.jobs()

    @property
    def chosen(self) -> list[str] | None:
        """The variants that are asked for; None: all."""
        return None if self.variants == "all" else listed(self.variants, "variants")

    def jobs(self) -> list[Job]:
        """Everything that is asked for, done or not; data set by data set and seed by seed."""
        changes = {name: getattr(self, name) for name in ("epochs", "model", "anchors", "limit")}
        places = product(
            listed(self.sets, "sets"), seeds_of(self.seeds), listed(self.noises, "noises"), listed(self.bases, "bases")
        )
        return [
            Job(name, noise, seed, base, wanted, training_for(name, **changes))
            for name, seed, noise, base in places
            if (wanted := tuple(name for name in VARIANTS[base] if self.chosen is None or name in self.chosen))
        ]


def quality(job: Job, result: Result) -> str:
    """The AUPR of the base, and the best of its variants."""
    found = {line["method"]: 100 * line["metrics"]["aupr"] for line in result.lines}
    if FULL not in found:
        return ""
    best = max(found, key=lambda name: found[name])
    return f"AUPR {found[FULL]:.1f}, best {found[best]:.1f} {best}"


GRID = Grid(KIND, quality)


def run_controller(settings: ControllerSettings, out: Path, command: str, tell: Say = say) -> dict[str, Any]:
    """Compare forms of the stability controller and parts of the engine; what --out holds is not computed again."""
    check_writable(out)
    runner = Runner(settings.data, command, choose_device(settings.device), tell)
    return GRID.complete(settings.jobs(), runner, out, command, settings.workers)


def show(whole: Mapping[str, Any]) -> str:
    """The results as tables."""
    return render(whole["results"]) if whole["results"] else "no results"


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the grid from the command line; returns the exit code."""
    return run_grid(program, ControllerSettings, run_controller, show, arguments, DEFAULT_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
