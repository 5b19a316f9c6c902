"""The runs: which there are, and which are done. A run is one data set with one seed, trained by one recipe."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from sgoif_bench.journal import kind_by
from sgoif_bench.labels.recipes import identity
from sgoif_bench.ood.recipes import OodTraining

METHOD = "unlearning"


class Key(NamedTuple):
    """What tells one run from another."""

    set: str
    method: str
    seed: int
    recipe_id: str


KIND = kind_by("sgoif-bench unlearning", Key, "singles", "groups")


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

    def key(self, method: str) -> Key:
        return Key(self.set, METHOD, self.seed, identity(self.recipe))

    def called(self, name: str) -> str:
        """The run for a person."""
        return f"{self.set} {name} seed {self.seed}"

    def __str__(self) -> str:
        return f"{self.set} seed {self.seed}"
