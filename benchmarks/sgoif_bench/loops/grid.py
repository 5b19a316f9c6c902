"""The runs: which there are, and which are done. A run is one loop with one noise and seed, trained twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from sgoif_bench.journal import kind_by
from sgoif_bench.labels.recipes import identity

SET = "digits"


class Key(NamedTuple):
    """What tells one run from another."""

    loop: str
    noise: str
    seed: int
    recipe_id: str


KIND = kind_by("sgoif-bench loops", Key, "metrics.label_score")


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

    def key(self, method: str) -> Key:
        return Key(self.loop, self.noise, self.seed, identity(self.recipe))

    def called(self, name: str) -> str:
        """The run for a person."""
        return f"{name} {self.noise} seed {self.seed}"

    def __str__(self) -> str:
        return self.called(self.loop)
