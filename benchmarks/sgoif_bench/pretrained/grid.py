"""The cells of the comparison: one method on one data set with one kind of noise and one seed, by one recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SettingError
from sgoif_bench.jobs import NoisyJob
from sgoif_bench.journal import kind_by
from sgoif_bench.labels.recipes import identity
from sgoif_bench.metrics import auroc, average_precision
from sgoif_bench.pretrained.recipes import Recipe

FIRST = 100


class Key(NamedTuple):
    """What tells one cell from another."""

    set: str
    noise: str
    method: str
    seed: int
    recipe_id: str


KIND = kind_by("sgoif-bench pretrained", Key, "metrics.aupr")


@dataclass(frozen=True)
class Job(NoisyJob):
    """One computation, and the methods whose results come from it."""

    described: Recipe

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything else that the outcome depends on."""
        return self.described.described

    def key(self, method: str) -> Key:
        return Key(self.set, self.noise, method, self.seed, identity(self.recipe))


def measure(is_wrong: NDArray[np.bool_], suspicion: NDArray[np.float64]) -> dict[str, float | None]:
    """How well a ranking finds the wrong labels, over all examples; nothing where none is wrong."""
    if suspicion.shape != is_wrong.shape or not np.isfinite(suspicion).all():
        raise SettingError(f"expected {len(is_wrong)} finite scores, got an array of shape {suspicion.shape}")
    if not is_wrong.any():
        return {"aupr": None, "auroc": None, "p_at_100": None}
    first = np.argsort(-suspicion, kind="stable")[:FIRST]
    return {
        "aupr": average_precision(is_wrong, suspicion),
        "auroc": auroc(is_wrong, suspicion),
        "p_at_100": float(is_wrong[first].mean()),
    }
