"""The runs: which there are, and which are done. A run is one training of so many steps beside so many anchors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sgoif_bench.command import Say
from sgoif_bench.journal import Kind, Line, read_lines

EPOCHS = 3
"""How often a run sees each of its examples, as long as the data set has enough of them."""
BATCH = 64


class Key(NamedTuple):
    """What tells one run from another."""

    set: str
    steps: int
    anchors: int
    noise: str
    seed: int


def key_of(line: Mapping[str, Any]) -> Key:
    """The run that a line belongs to."""
    line["metrics"]["label_score"]
    return Key(*(line[name] for name in Key._fields))


KIND = Kind("sgoif-bench lengths", key_of)


def read_results(paths: Sequence[Path], tell: Say = lambda message: None) -> list[Line]:
    """All lines of these files, one per run: of several the last one."""
    return read_lines(paths, KIND, tell)


@dataclass(frozen=True)
class Job:
    """One training."""

    set: str
    steps: int
    anchors: int
    noise: str
    seed: int

    @property
    def family(self) -> str:
        return f"{self.steps} steps"

    @property
    def methods(self) -> tuple[str, ...]:
        return (self.called("run"),)

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything else that the outcome depends on."""
        return {"epochs": EPOCHS, "batch_size": BATCH}

    @property
    def place(self) -> dict[str, Any]:
        """Its key by names."""
        return self.key._asdict()

    @property
    def key(self) -> Key:
        return Key(self.set, self.steps, self.anchors, self.noise, self.seed)

    def called(self, name: str) -> str:
        """The run for a person."""
        return f"{name} of {self.steps} steps with {self.anchors} anchors, {self.set} {self.noise} seed {self.seed}"

    def __str__(self) -> str:
        return self.called("run")


def pending(jobs: Iterable[Job], done: Mapping[Key, Line]) -> list[Job]:
    """The runs that are still to be done."""
    return [job for job in jobs if job.key not in done]


def asked_for(jobs: Iterable[Job], done: Mapping[Key, Line]) -> list[Line]:
    """What the file holds of these runs."""
    return [done[job.key] for job in jobs if job.key in done]
