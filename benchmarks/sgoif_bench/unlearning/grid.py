"""The runs: which there are, and which are done. A run is one data set with one seed, trained by one recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sgoif_bench.command import Say
from sgoif_bench.journal import Kind, Line, read_lines
from sgoif_bench.labels.recipes import identity
from sgoif_bench.ood.recipes import OodTraining

METHOD = "unlearning"


class Key(NamedTuple):
    """What tells one run from another."""

    set: str
    method: str
    seed: int
    recipe_id: str


def key_of(line: Mapping[str, Any]) -> Key:
    """The run that a line belongs to."""
    line["singles"], line["groups"]
    return Key(*(line[name] for name in Key._fields))


KIND = Kind("sgoif-bench unlearning", key_of)


def read_results(paths: Sequence[Path], tell: Say = lambda message: None) -> list[Line]:
    """All lines of these files, one per run: of several the last one."""
    return read_lines(paths, KIND, tell)


@dataclass(frozen=True)
class Deletions:
    """How many deletions of which kind, and of which head."""

    singles: int = 200
    """Half of them at random, half the most influential."""
    groups: int = 60
    """A third each: random, of one class, neighbours of each other."""
    smallest: int = 10
    largest: int = 50
    l2: float = 5e-4
    full_groups: int = 0
    """Groups without which the whole network is trained again,"""
    full_seeds: int = 4
    """so many times."""


@dataclass(frozen=True)
class Job:
    """One training of a network and everything that is deleted from its head."""

    set: str
    seed: int
    training: OodTraining
    deletions: Deletions
    family: str = METHOD
    methods: tuple[str, ...] = (METHOD,)

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything else that the outcome depends on."""
        return self.training.described(**asdict(self.deletions))

    @property
    def place(self) -> dict[str, Any]:
        """Data set and seed."""
        return {"set": self.set, "seed": self.seed}

    @property
    def key(self) -> Key:
        return Key(self.set, METHOD, self.seed, identity(self.recipe))

    def called(self, name: str) -> str:
        """The run for a person."""
        return f"{self.set} {name} seed {self.seed}"

    def __str__(self) -> str:
        return f"{self.set} seed {self.seed}"


def pending(jobs: Iterable[Job], done: Mapping[Key, Line]) -> list[Job]:
    """The runs that are still to be done."""
    return [job for job in jobs if job.key not in done]


def asked_for(jobs: Iterable[Job], done: Mapping[Key, Line]) -> list[Line]:
    """What the file holds of these runs."""
    return [done[job.key] for job in jobs if job.key in done]
