"""The cells of the comparison: one data set with one kind of noise and one seed, audited in one way by one recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from sgoif_bench.journal import kind_by
from sgoif_bench.labels.recipes import identity


class Key(NamedTuple):
    """What tells one cell from another."""

    set: str
    noise: str
    way: str
    seed: int
    recipe_id: str


KIND = kind_by("sgoif-bench audits", Key, "metrics.aupr", "seconds", "chosen")


@dataclass(frozen=True)
class Job:
    """Audits of the same folder, of which later ones find the features that the first has kept."""

    set: str
    noise: str
    seed: int
    family: str
    methods: tuple[str, ...]
    """The ways that are asked for."""
    recipe: dict[str, Any]
    """Everything else that the outcome depends on."""

    @property
    def place(self) -> dict[str, Any]:
        """Data set, noise and seed."""
        return {"set": self.set, "noise": self.noise, "seed": self.seed}

    def key(self, method: str) -> Key:
        return Key(self.set, self.noise, method, self.seed, identity(self.recipe))

    def called(self, name: str) -> str:
        """A way at this place, for a person."""
        return f"{self.set} {self.noise} {name} seed {self.seed}"

    def __str__(self) -> str:
        return self.called(" and ".join(self.methods))
