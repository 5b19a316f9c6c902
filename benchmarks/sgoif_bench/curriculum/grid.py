"""The cells of the comparison: which there are, and which are done.

A cell is one method on one data set with one kind of noise and one seed, trained by one recipe, which also says how
long the data set's tail is. Its result is one line of a JSON Lines file (`bench.journal`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from sgoif_bench.curriculum.recipes import CurriculumTraining
from sgoif_bench.curriculum.registry import OURS
from sgoif_bench.journal import kind_by
from sgoif_bench.labels.recipes import identity


class Key(NamedTuple):
    """What tells one cell from another."""

    set: str
    noise: str
    method: str
    seed: int
    recipe_id: str


KIND = kind_by("sgoif-bench curriculum", Key, "metrics.accuracy")


@dataclass(frozen=True)
class Job:
    """One training by one method."""

    set: str
    noise: str
    seed: int
    method: str
    training: CurriculumTraining
    human: str | None = None
    """Identity of the file with human labels, where the noise needs one."""
    options: tuple[tuple[str, float], ...] = ()
    """Settings of our curriculum that were asked for; those of others stay at their defaults."""

    @property
    def family(self) -> str:
        return self.method

    @property
    def methods(self) -> tuple[str, ...]:
        return (self.method,)

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything else that the outcome depends on."""
        own = dict(self.options) or None
        return {**self.training.described(human=self.human, curriculum=own), "tail": self.training.tail}

    @property
    def place(self) -> dict[str, Any]:
        """Data set, noise, tail and seed."""
        return {"set": self.set, "noise": self.noise, "tail": self.training.tail, "seed": self.seed}

    def key(self, method: str) -> Key:
        return Key(self.set, self.noise, self.method, self.seed, identity(self.recipe))

    def called(self, name: str) -> str:
        """A method at this place, for a person."""
        tail = "" if self.training.tail is None else f" tail {self.training.tail:g}"
        own = "".join(f" {option}={value:g}" for option, value in self.options)
        return f"{self.set}{tail} {self.noise} {name}{own} seed {self.seed}"

    def __str__(self) -> str:
        return self.called(self.method)


def plan(
    trainings: Sequence[tuple[str, CurriculumTraining]],
    noises: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    human: str | None = None,
    options: tuple[tuple[str, float], ...] = (),
) -> list[Job]:
    """Every job of the grid, data set by data set and seed by seed; the options are for our methods."""
    return [
        Job(
            *(name, noise, seed, method, training),
            human=human if noise.startswith("human") else None,
            options=options if method in OURS else (),
        )
        for (name, training), seed, noise, method in product(trainings, seeds, noises, methods)
    ]
