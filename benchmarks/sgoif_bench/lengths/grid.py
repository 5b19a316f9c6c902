"""The runs: which there are, and which are done. A run is one training of so many steps beside so many anchors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from sgoif_bench.journal import kind_by

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


KIND = kind_by("sgoif-bench lengths", Key, "metrics.label_score")


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
        return self.key(self.family)._asdict()

    def key(self, method: str) -> Key:
        return Key(self.set, self.steps, self.anchors, self.noise, self.seed)

    def called(self, name: str) -> str:
        """The run for a person."""
        return f"{name} of {self.steps} steps with {self.anchors} anchors, {self.set} {self.noise} seed {self.seed}"

    def __str__(self) -> str:
        return self.called("run")
