"""What a trace found: a score for every training example, which of them to remove, and how they belong together."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from sgoif.core.score_table import ScoreTable
from sgoif.core.types import Indices
from sgoif.tasks.poisoning.families import Family
from sgoif.tasks.poisoning.mixture import Mixture, Values
from sgoif.tasks.poisoning.removal_estimate import RemovalEstimate

STEEPNESS = 1.5
"""How fast belief grows beyond the thresholds: from ½ at them to 0.95 two units further."""


@dataclass(frozen=True)
class Thresholds:
    """How far a mode must stand apart from its class to be called a cause."""

    separation: float
    contrast: float
    members: int
    """Least number of examples in it."""
    share: float
    """Largest share of the class that it may be."""
    larger: "Thresholds | None" = None
    """What is asked of a mode with a larger share; None: it is a part of what the class is."""

    def at_least(self, separation: float) -> Self:
        """The same, with this separation where less was asked."""
        return replace(self, separation=max(self.separation, separation))

    def judge(self, label: int, mixture: Mixture, members: int) -> "Evidence":
        """What a label's mixture means by these thresholds."""
        belief = self.belief(mixture)
        return Evidence(label, mixture, members, belief, passed=members >= self.members and belief >= 0.5)

    def belief(self, mixture: Mixture) -> float:
        """½ where the modes just stand apart far enough, towards 1 beyond; 0 for a mode that is too large a part."""
        if mixture.share > self.share:
            return 0.0 if self.larger is None else self.larger.belief(mixture)
        beyond = min(mixture.separation - self.separation, mixture.contrast - self.contrast)
        return float(1 / (1 + np.exp(-STEEPNESS * np.clip(beyond, -100, 100))))


@dataclass(frozen=True)
class Evidence:
    """What one label's examples say."""

    label: int
    mixture: Mixture
    members: int
    """Examples more likely in the upper mode than not."""
    belief: float
    """That the upper mode is a group of its own."""
    passed: bool
    """Whether that is enough to remove it."""


@dataclass(frozen=True)
class VictimCauses:
    """The training examples that have most in common with one victim."""

    label: int
    """The wrong label of the victim."""
    index: Indices
    """Most first."""
    score: Values
    """In robust units of their class."""


@dataclass
class TraceResult:
    """Which training examples cause a behaviour. Arrays are by row; `index` says what each row is called."""

    score: Values
    """Higher = more likely a cause."""
    probability: Values
    """Posterior of standing apart from the class, times the belief that anything stands apart there at all. It is a
    statement about modes of the scores, not one that was checked against known poison."""
    selected: Indices
    """Indices to remove, most probable first; empty where nothing stands apart."""
    families: list[Family]
    index: Indices
    given: Indices
    """The label of each row."""
    evidence: list[Evidence]
    """By label, those that stand apart furthest first."""
    responsible: list[VictimCauses] = field(default_factory=list)
    """For each of the first victims; empty without victims."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know."""
    estimating: Callable[[], RemovalEstimate | None] | None = field(default=None, repr=False)

    @cached_property
    def to_restore(self) -> RemovalEstimate | None:
        """How many of the highest scores would have to go; None where that cannot be told, or there are no victims.

        Worked out when it is first asked for.
        """
        return None if self.estimating is None else self.estimating()

    @property
    def order(self) -> Indices:
        """All indices by falling score."""
        ranked: Indices = self.index[np.lexsort((-self.score, -self.probability))]
        return ranked

    def family_of(self) -> Indices:
        """The number of each row's family, −1 for none."""
        found = np.full(len(self.index), -1, dtype=np.int64)
        for number, family in enumerate(self.families):
            found[np.isin(self.index, family.index)] = number
        return found

    def table(self) -> ScoreTable:
        """One row per training example."""
        return ScoreTable(
            {
                "index": self.index,
                "poison_score": self.score,
                "probability": self.probability,
                "family": self.family_of(),
                "given_label": self.given,
                "selected": np.isin(self.index, self.selected),
            }
        )

    def __len__(self) -> int:
        """Number of training examples."""
        return len(self.index)

    def __repr__(self) -> str:
        if not len(self.selected):
            return f"TraceResult: nothing stands apart among {len(self):,} examples"
        kinds = "family" if len(self.families) == 1 else "families"
        return (
            f"TraceResult: {len(self.selected):,} of {len(self):,} examples to remove, in {len(self.families)} {kinds}"
        )
