"""What is asked for on the command line of `sgoif-bench loops`, and the runs that come of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from sgoif.errors import SettingError
from sgoif_bench.command import listed, seeds_of, setting
from sgoif_bench.labels.noises import parse
from sgoif_bench.loops.grid import Job
from sgoif_bench.loops.registry import LOOPS, choose

LEAST_DIGITS = 200


@dataclass(frozen=True)
class LoopSettings:
    """Loops, noises and seeds."""

    loops: str = setting("all", help="all, or names of loops, separated by commas")
    noises: str = setting(
        "symmetric-20,class-dependent-20", help="kinds of wrong labels, separated by commas, as in bench labels"
    )
    seeds: str = setting("0,1,2", help="seeds of noise, split, initial weights and batches, separated by commas")
    epochs: int | None = setting(None, help="epochs of training; unset: by loop")
    limit: int | None = setting(None, help="use only so many of the 1,797 digits")
    workers: int = setting(1, help="processes that train at the same time")

    def __post_init__(self) -> None:
        least = {"workers": 1, "epochs": 1, "limit": LEAST_DIGITS}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise SettingError(f"{name} = {value} must be at least {smallest}")
        for noise in listed(self.noises, "noises"):
            if parse(noise).kind == "none":
                raise SettingError("--noises none leaves nothing to find; name noises such as symmetric-20")
        self.jobs()

    def jobs(self) -> list[Job]:
        """Everything that is asked for, done or not."""
        return [
            Job(name, noise, seed, self.epochs or LOOPS[name].epochs, self.limit)
            for name, noise, seed in product(choose(self.loops), listed(self.noises, "noises"), seeds_of(self.seeds))
        ]
