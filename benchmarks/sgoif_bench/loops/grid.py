"""The runs: which there are, and which are done. A run is one loop with one noise and seed, trained twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sgoif_bench.command import Say
from sgoif_bench.journal import Kind, Line, read_lines
from sgoif_bench.labels.recipes import identity

SET = "digits"


class Key(NamedTuple):
    """What tells one run from another."""

    loop: str
    noise: str
    seed: int
    recipe_id: str


def key_of(line: Mapping[str, Any]) -> Key:
    """The run that a line belongs to."""
    line["metrics"]["label_score"]
    return Key(*(line[name] for name in Key._fields))


KIND = Kind("sgoif-bench loops", key_of)


def read_results(paths: Sequence[Path], tell: Say = lambda message: None) -> list[Line]:
    """All lines of these files, one per run: of several the last one."""
    return read_lines(paths, KIND, tell)


@dataclass(frozen=True)
class Job:
    """One loop, trained without and with the monitor."""

    loop: str
    noise: str
    seed: int
    epochs: int
    limit: int | None = None
    """Only so many of the digits."""
    set: str = SET

    @property
    def family(self) -> str:
        return self.loop

    @property
    def methods(self) -> tuple[str, ...]:
        return (self.loop,)

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything else that the outcome depends on."""
        return {"epochs": self.epochs, "limit": self.limit}

    @property
    def place(self) -> dict[str, Any]:
        """Noise and seed."""
        return {"noise": self.noise, "seed": self.seed}

    @property
    def key(self) -> Key:
        return Key(self.loop, self.noise, self.seed, identity(self.recipe))

    def called(self, name: str) -> str:
        """The run for a person."""
        return f"{name} {self.noise} seed {self.seed}"

    def __str__(self) -> str:
        return self.called(self.loop)


def pending(jobs: Iterable[Job], done: Mapping[Key, Line]) -> list[Job]:
    """The runs that are still to be done."""
    return [job for job in jobs if job.key not in done]


def asked_for(jobs: Iterable[Job], done: Mapping[Key, Line]) -> list[Line]:
    """What the file holds of these runs."""
    return [done[job.key] for job in jobs if job.key in done]
