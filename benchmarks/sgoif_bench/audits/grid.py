"""The cells of the comparison: one data set with one kind of noise and one seed, audited in one way by one recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from sgoif_bench.jobs import NoisyJob
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
class Job(NoisyJob):
    """Audits of the same folder, of which later ones find the features that the first has kept."""

    recipe: dict[str, Any]
    """Everything else that the outcome depends on."""

    def key(self, method: str) -> Key:
        return Key(self.set, self.noise, method, self.seed, identity(self.recipe))
