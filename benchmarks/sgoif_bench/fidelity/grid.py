"""The cells of the comparison: which there are, and which are done.

A cell is one method on one data set with one share of wrong labels and one seed, trained by one recipe, judged by one
truth. Its result is one line of a JSON Lines file (`bench.journal`). A method that cannot run has a line too, with the
reason under `error`. Before the methods come the jobs that train the truth; they leave files and no lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from sgoif_bench.fidelity.recipes import FidelityTraining
from sgoif_bench.fidelity.registry import METHODS
from sgoif_bench.fidelity.truth import ALONE, LABEL, OUT, Wanted
from sgoif_bench.journal import kind_by
from sgoif_bench.labels.recipes import identity
from sgoif_bench.methods import marked

AT_ONCE = 8
"""Sets that one job of the truth trains."""


class Key(NamedTuple):
    """What tells one cell from another."""

    set: str
    wrong_share: float
    method: str
    seed: int
    recipe_id: str
    form: int = 1


KIND = kind_by("sgoif-bench fidelity", Key, shown=partial(marked, METHODS))


@dataclass(frozen=True)
class Judging:
    """What scores are held against."""

    queries: int = 100
    subsets: int = 64
    trainings: int = 2
    """Networks per subset."""
    share: float = 0.5
    left_out: tuple[int, ...] = ()
    """Sizes of groups that are left out."""
    groups: int = 16
    group_trainings: int = 4
    brittle: int = 0
    """Queries for which each method's most helpful examples are removed and a network is trained again."""
    alone: int = 0
    """Examples that are left out one by one."""
    relabelled: tuple[int, ...] = ()
    """Sizes of sets whose label is changed."""
    changes: int = 32
    """Sets of each of these sizes."""
    pairs: int = 4
    """Pairs of networks, one with and one without it, for each example left out alone and each changed label."""

    def wanted(self) -> list[Wanted]:
        """Sets that are trained on."""
        found = [Wanted("half", self.subsets, self.trainings, self.share)]
        if self.left_out:
            groups = [Wanted(f"{OUT}{size}", self.groups, self.group_trainings) for size in self.left_out]
            found += [Wanted("all", 1, 4 * self.group_trainings), *groups]
        if self.alone:
            found.append(Wanted(ALONE, 1 + self.alone, self.pairs))
        return found + [Wanted(f"{LABEL}{size}", 1 + self.changes, self.pairs) for size in self.relabelled]

    def described(self) -> dict[str, Any]:
        """As it is written down; what is not asked for is left out, so that lines from before it existed stay valid."""
        found = {**asdict(self), "left_out": list(self.left_out), "relabelled": list(self.relabelled)}
        unused = [] if self.alone or self.relabelled else ["alone", "relabelled", "changes", "pairs"]
        return {name: value for name, value in found.items() if name not in unused}


@dataclass(frozen=True)
class Job:
    """One study: either some sets of its truth, or the methods that are judged by it."""

    set: str
    wrong_share: float
    seed: int
    training: FidelityTraining
    judging: Judging
    methods: tuple[str, ...] = ()
    truth: tuple[Wanted, tuple[int, ...]] | None = None

    @property
    def family(self) -> str:
        """Jobs of a kind take about as long."""
        return "methods" if self.truth is None else f"truth {self.truth[0].kind}"

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything that the outcome depends on beside data set, method and seed."""
        return self.training.described(**self.judging.described())

    @property
    def place(self) -> dict[str, Any]:
        """Data set, share of wrong labels and seed."""
        return {"set": self.set, "wrong_share": self.wrong_share, "seed": self.seed}

    @property
    def truth_id(self) -> str:
        """A name for what is trained, whatever the methods: the folder of its files."""
        described = self.training.described(queries=self.judging.queries, share=self.judging.share)
        return f"{self.set}-{self.wrong_share:g}-seed{self.seed}-{identity(described)}"

    def key(self, method: str) -> Key:
        form = METHODS[method].form if method in METHODS else 1  # parts of a truth are no methods
        return Key(self.set, self.wrong_share, method, self.seed, identity(self.recipe), form)

    def called(self, name: str) -> str:
        """A method at this place, for a person."""
        wrong = f" with {100 * self.wrong_share:g}% wrong labels" if self.wrong_share else ""
        return f"{self.set}{wrong} {name} seed {self.seed}"

    def __str__(self) -> str:
        if self.truth is None:
            return self.called("methods")
        wanted, numbers = self.truth
        return self.called(f"{len(numbers) * wanted.trainings} networks of the truth ({wanted.kind})")


def plan(
    trainings: Mapping[str, FidelityTraining],
    shares: Sequence[float],
    methods: Sequence[str],
    seeds: Sequence[int],
    judging: Mapping[str, Judging],
) -> list[Job]:
    """One job per study, all methods in it."""
    return [
        Job(name, share, seed, training, judging[name], tuple(methods))
        for (name, training), share, seed in product(trainings.items(), shares, seeds)
    ]


def truth_jobs(job: Job, wanted: Wanted, numbers: Sequence[int]) -> list[Job]:
    """Jobs that train these sets of a study's truth."""
    parts = [tuple(numbers[start : start + AT_ONCE]) for start in range(0, len(numbers), AT_ONCE)]
    return [replace(job, methods=("truth",), truth=(wanted, part)) for part in parts]
