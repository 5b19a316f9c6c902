"""The cells of the comparison: which there are, and which are done.

A cell is one method on one in-distribution set with one seed under one protocol, trained by one recipe with labels of
which some may be wrong. Its result is one line of a JSON Lines file (`bench.journal`). A line counts as done when it
has a figure for every out-of-distribution set that is there now: a set that is unpacked later is made up for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from sgoif_bench.journal import kind_by
from sgoif_bench.labels.recipes import identity
from sgoif_bench.methods import marked
from sgoif_bench.ood.recipes import OodTraining
from sgoif_bench.ood.registry import METHODS, POST_HOC, SHARED


class Key(NamedTuple):
    """What tells one cell from another."""

    set: str
    noise: str
    protocol: str
    method: str
    seed: int
    recipe_id: str
    inputs: str
    """Identity of what else the method learned from: outliers, weights."""
    form: int = 1


KIND = kind_by("sgoif-bench ood", Key, shown=partial(marked, METHODS))


@dataclass(frozen=True)
class Job:
    """One training: of a network for all post-hoc detectors or all ablations, or of one method in its own way."""

    set: str
    noise: str
    protocol: str
    seed: int
    family: str
    methods: tuple[str, ...]
    training: OodTraining
    human: str | None = None
    """Identity of the file with human labels, where the noise needs one."""
    test_limit: int | None = None
    inputs: str = ""

    @property
    def shared(self) -> bool:
        """Whether several methods' outcomes come from this training."""
        return self.family in SHARED

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything else that the outcome depends on, for all methods the same."""
        return self.training.described(human=self.human, test_limit=self.test_limit)

    @property
    def place(self) -> dict[str, Any]:
        """Data set, noise, protocol and seed."""
        return {"set": self.set, "noise": self.noise, "protocol": self.protocol, "seed": self.seed}

    @property
    def network(self) -> str:
        """A name of the network that is trained for the post-hoc detectors; the test sets do not change it."""
        trained_by = identity(self.training.described(human=self.human))
        return f"{self.set}-{self.noise}-{trained_by}-seed{self.seed}"

    def key(self, method: str) -> Key:
        recipe_id, form = identity(self.recipe), METHODS[method].form
        return Key(self.set, self.noise, self.protocol, method, self.seed, recipe_id, self.inputs, form)

    def called(self, name: str) -> str:
        """A method or family at this place, for a person."""
        noise = "" if self.noise == "none" else f" {self.noise}"
        return f"{self.set}{noise} {name} seed {self.seed}"

    def __str__(self) -> str:
        return self.called(self.family)


def plan(
    trainings: Mapping[str, OodTraining],
    protocol: str,
    noise: str,
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    human: str | None = None,
    test_limit: int | None = None,
    outliers: str = "",
    weights: str = "",
) -> list[Job]:
    """Every job of the grid, data set by data set and seed by seed; `trainings` gives each data set its recipe."""
    together: dict[str, list[str]] = {}
    for name in methods:
        together.setdefault(METHODS[name].family, []).append(name)

    def inputs(family: str) -> str:
        if family == POST_HOC:
            return weights
        return outliers if family not in SHARED and METHODS[family].needs_outliers else ""

    return [
        Job(name, noise, protocol, seed, family, tuple(group), training, human, test_limit, inputs(family))
        for (name, training), seed, (family, group) in product(trainings.items(), seeds, together.items())
    ]
