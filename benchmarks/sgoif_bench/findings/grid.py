"""The cells of the benchmark: one kind of finding in one folder, beside its clean twin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from sgoif_bench.journal import kind_by
from sgoif_bench.labels.recipes import identity


class Key(NamedTuple):
    """What tells one cell from another."""

    set: str
    kind: str
    seed: int
    recipe_id: str


KIND = kind_by("sgoif-bench findings", Key, "planted", "metrics.recall", "clean_images")


@dataclass(frozen=True)
class Job:
    """A folder and its twin, in which all kinds are looked for."""

    set: str
    seed: int
    methods: tuple[str, ...]
    """The kinds that are asked for."""
    recipe: dict[str, Any]
    """Everything else that the outcome depends on."""

    @property
    def family(self) -> str:
        """All take as long."""
        return "findings"

    @property
    def place(self) -> dict[str, Any]:
        """Data set and seed."""
        return {"set": self.set, "seed": self.seed}

    def key(self, method: str) -> Key:
        return Key(self.set, method, self.seed, identity(self.recipe))

    def called(self, name: str) -> str:
        """A kind at this place, for a person."""
        return f"{self.set} {name} seed {self.seed}"

    def __str__(self) -> str:
        return self.called(f"{len(self.methods)} kinds")
