"""The cells of the comparison: one monitor on one data set with one kind of noise and one seed, by one recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from sgoif_bench.jobs import NoisyJob
from sgoif_bench.journal import kind_by
from sgoif_bench.labels.recipes import Training, identity


class Key(NamedTuple):
    """What tells one cell from another."""

    set: str
    noise: str
    base: str
    method: str
    seed: int
    recipe_id: str


KIND = kind_by("sgoif-bench controller", Key, "metrics.aupr", "label_score")


@dataclass(frozen=True)
class Job(NoisyJob):
    """One training that all monitors of a base watch; its family is the base."""

    training: Training

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything else that the outcome depends on."""
        return self.training.described()

    def key(self, method: str) -> Key:
        return Key(self.set, self.noise, self.family, method, self.seed, identity(self.recipe))

    def __str__(self) -> str:
        return self.called(self.family)
