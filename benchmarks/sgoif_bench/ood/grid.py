"""The cells of the comparison: which there are, and which are done.

A cell is one method on one in-distribution set with one seed under one protocol, trained by one recipe with labels of
which some may be wrong. Its result is one line of a JSON Lines file (`bench.journal`). A line counts as done when it
has a figure for every out-of-distribution set that is there now: a set that is unpacked later is made up for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from sgoif_bench.command import Say
from sgoif_bench.journal import Kind, Line, read_lines
from sgoif_bench.labels.recipes import identity
from sgoif_bench.ood.recipes import OodTraining
from sgoif_bench.ood.registry import METHODS, POST_HOC, SHARED


class Key(NamedTuple):
    """What tells one cell from another."""

    set: str
    noise: str
    protocol: str
    method: str
    seed: int
    recipe_id: str
    inputs: str
    """Identity of what else the method learned from: outliers, weights."""


def key_of(line: Mapping[str, Any]) -> Key:
    """The cell that a line belongs to."""
    return Key(*(line[name] for name in Key._fields))


KIND = Kind("sgoif-bench ood", key_of)


def read_results(paths: Sequence[Path], tell: Say = lambda message: None) -> list[Line]:
    """All lines of these files, one per cell: of several the last one."""
    return read_lines(paths, KIND, tell)


@dataclass(frozen=True)
class Job:
    """One training: of a network for all post-hoc detectors or all ablations, or of one method in its own way."""

    set: str
    noise: str
    protocol: str
    seed: int
    family: str
    methods: tuple[str, ...]
    training: OodTraining
    human: str | None = None
    """Identity of the file with human labels, where the noise needs one."""
    test_limit: int | None = None
    inputs: str = ""

    @property
    def shared(self) -> bool:
        """Whether several methods' outcomes come from this training."""
        return self.family in SHARED

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything else that the outcome depends on, for all methods the same."""
        return self.training.described(human=self.human, test_limit=self.test_limit)

    @property
    def place(self) -> dict[str, Any]:
        """Data set, noise, protocol and seed."""
        return {"set": self.set, "noise": self.noise, "protocol": self.protocol, "seed": self.seed}

    @property
    def network(self) -> str:
        """A name of the network that is trained for the post-hoc detectors; the test sets do not change it."""
        trained_by = identity(self.training.described(human=self.human))
        return f"{self.set}-{self.noise}-{trained_by}-seed{self.seed}"

    def key(self, method: str) -> Key:
        return Key(self.set, self.noise, self.protocol, method, self.seed, identity(self.recipe), self.inputs)

    def called(self, name: str) -> str:
        """A method or family at this place, for a person."""
        noise = "" if self.noise == "none" else f" {self.noise}"
        return f"{self.set}{noise} {name} seed {self.seed}"

    def __str__(self) -> str:
        return self.called(self.family)


def plan(
    trainings: Mapping[str, OodTraining],
    protocol: str,
    noise: str,
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    human: str | None = None,
    test_limit: int | None = None,
    outliers: str = "",
    weights: str = "",
) -> list[Job]:
    """Every job of the grid, data set by data set and seed by seed; `trainings` gives each data set its recipe."""
    together: dict[str, list[str]] = {}
    for name in methods:
        together.setdefault(METHODS[name].family, []).append(name)

    def inputs(family: str) -> str:
        if family == POST_HOC:
            return weights
        return outliers if family not in SHARED and METHODS[family].needs_outliers else ""

    return [
        Job(name, noise, protocol, seed, family, tuple(group), training, human, test_limit, inputs(family))
        for (name, training), seed, (family, group) in product(trainings.items(), seeds, together.items())
    ]


def pending(jobs: Iterable[Job], done: Mapping[Key, Line], there: Mapping[str, Collection[str]]) -> list[Job]:
    """The jobs that still have something to do, each with the methods that are missing.

    `there` names for every data set the out-of-distribution sets that can be read.
    """

    def is_done(job: Job, method: str) -> bool:
        line = done.get(job.key(method))
        return line is not None and set(there[job.set]) <= set(line["ood"])

    left = (replace(job, methods=tuple(m for m in job.methods if not is_done(job, m))) for job in jobs)
    return [job for job in left if job.methods]


def asked_for(jobs: Iterable[Job], done: Mapping[Key, Line]) -> list[Line]:
    """What the file holds of these jobs."""
    registered = {job.key(method) for job in jobs for method in job.methods}
    return [line for key, line in done.items() if key in registered]
