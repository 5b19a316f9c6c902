"""What is asked of a judge, the one of the product, and the same with a number chosen on other data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sgoif.tasks.labels.calibration import STEEPER
from sgoif.tasks.labels.judgement import Judgement, judge
from sgoif_bench.judgement.corpus import Kept

FDR, MOST_FALSE, KEPT = 0.1, 0.15, 0.9
"""False discovery rate that is asked for, the largest that is all right, and in how many lists it has to be."""
Labels = NDArray[np.int64]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    """What a judge says of a run: of the training examples, then of the held-out ones."""

    index: Labels
    suspicion: Array
    """Of the training examples alone; higher = more suspicious."""
    probability: Array
    """P(wrong) of all."""
    rate: tuple[float, float, float]
    """Share of wrong labels among all: estimate, low, high."""
    listed: Labels
    """Positions in `index` of the labels that are surely wrong, at a false discovery rate of 0.1."""


class Judge(Protocol):
    """Judges runs with constants that were chosen on other runs."""

    def fit(self, runs: Sequence[Kept]) -> Any:
        """Constants from these runs, whose truth may be looked at; anything that can be sent to another process."""

    def judge(self, run: Mapping[str, Any], constants: Any) -> Answer:
        """The answer about a run, whose truth may not be looked at."""


class Product:
    """`sgoif.tasks.labels.judgement`, whose constants stand in its modules."""

    def fit(self, runs: Sequence[Kept]) -> Any:
        """Nothing is chosen here."""
        return None

    def judge(self, run: Mapping[str, Any], constants: Any) -> Answer:
        return answer(verdict_of(run))


class LeftOut(Product):
    """The same, with the factor of the slope, which decides how long a list is, chosen on the runs that it is given.

    It is the one whose lists are longest (median recall) among those with which nine in ten lists hold at most 15%
    right labels.
    """

    SLOPES = (1.25, 1.5, 1.75, 2.0)

    def __init__(self) -> None:
        self._lists: dict[str, dict[float, tuple[float, float]]] = {}

    def fit(self, runs: Sequence[Kept]) -> float:
        """The factor for runs of other data sets; published probabilities, without a training, do not count."""
        runs = [run for run in runs if run.case is None]
        for run in runs:
            if run.name not in self._lists:
                self._lists[run.name] = self._tried(run)
        lists = [self._lists[run.name] for run in runs]
        kept = {slope: float(np.mean([found[slope][0] <= MOST_FALSE for found in lists])) for slope in self.SLOPES}
        good = [slope for slope, share in kept.items() if share >= KEPT] or [max(kept, key=lambda slope: kept[slope])]
        return max(good, key=lambda slope: float(np.nanmedian([found[slope][1] for found in lists])))

    def _tried(self, run: Kept) -> dict[float, tuple[float, float]]:
        """False discovery rate and recall of the list with every factor."""
        known = run.load()
        verdict, wrong, found = verdict_of(known), known["given"] != known["true"], {}
        for slope in self.SLOPES:
            told = answer(steeper(verdict, slope))
            is_wrong = wrong[told.index]
            hits = int(is_wrong[told.listed].sum())
            false = 1 - hits / len(told.listed) if len(told.listed) else 0.0
            found[slope] = false, hits / int(is_wrong.sum()) if is_wrong.any() else float("nan")
        return found

    def judge(self, run: Mapping[str, Any], constants: Any) -> Answer:
        return answer(steeper(verdict_of(run), constants))


def verdict_of(run: Mapping[str, Any]) -> Judgement:
    """The judgement of a run."""
    return judge(run["training"], run["anchors"], int(max(run["given"].max(), run["true"].max())) + 1)


def steeper(verdict: Judgement, factor: float) -> Judgement:
    """The same with another factor of the slope."""
    return replace(verdict, curve=replace(verdict.curve, slope=verdict.curve.slope * factor / STEEPER))


def answer(verdict: Judgement) -> Answer:
    """What a judgement says of training and held-out examples together."""
    v = np.concatenate([verdict.suspicion, verdict.anchor_suspicion])
    return Answer(
        index=np.concatenate([verdict.training.index, verdict.anchors.index]),
        suspicion=verdict.suspicion,
        probability=verdict.curve.probability(v, verdict.rate.estimate),
        rate=verdict.rate,
        listed=verdict.selected(v, FDR),
    )
