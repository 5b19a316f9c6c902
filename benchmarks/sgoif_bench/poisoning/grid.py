"""The cells of the comparison: which there are, and which are done.

A cell is one method on one data set under one attack with one seed, trained by one recipe. Its result is one line of a
JSON Lines file (`bench.journal`). All methods of an attack and a seed come from one training, which is one job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from sgoif_bench.journal import kind_by
from sgoif_bench.labels.recipes import Training, identity
from sgoif_bench.poisoning.attacks.naming import NONE, make_attack
from sgoif_bench.poisoning.registry import METHODS


class Key(NamedTuple):
    """What tells one cell from another."""

    set: str
    attack: str
    method: str
    seed: int
    recipe_id: str


KIND = kind_by("sgoif-bench poisoning", Key)


@dataclass(frozen=True)
class Job:
    """One training under one attack, and the methods that look at it."""

    set: str
    attack: str
    seed: int
    methods: tuple[str, ...]
    training: Training
    further: Mapping[str, Any] = field(default_factory=dict)
    """What else the outcome depends on, such as how many victims are known."""

    @property
    def family(self) -> str:
        """Jobs of one attack take about as long."""
        return self.attack

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything that the outcome depends on beside data set, method and seed, the attack's settings included."""
        attack = make_attack(self.attack, self.set)
        settings = {} if attack is None else vars(attack)
        return {
            **self.training.described(**self.further),
            **{f"attack_{name}": value for name, value in settings.items()},
        }

    @property
    def place(self) -> dict[str, Any]:
        """Data set, attack and seed."""
        return {"set": self.set, "attack": self.attack, "seed": self.seed}

    def key(self, method: str) -> Key:
        return Key(self.set, self.attack, method, self.seed, identity(self.recipe))

    def called(self, name: str) -> str:
        """A method at this place, for a person."""
        return f"{self.set} {self.attack} {name} seed {self.seed}"

    def __str__(self) -> str:
        return f"{self.set} {self.attack} seed {self.seed}"


def plan(
    trainings: Mapping[str, Training],
    attacks: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    **further: Any,
) -> list[Job]:
    """Every job of the grid, seed by seed. Without an attack there are no victims, and no method that needs them."""

    def possible(attack: str) -> tuple[str, ...]:
        return tuple(name for name in methods if attack != NONE or not METHODS[name].knows_victims)

    return [
        Job(name, attack, seed, possible(attack), training, further)
        for (name, training), seed, attack in product(trainings.items(), seeds, attacks)
        if possible(attack)
    ]
