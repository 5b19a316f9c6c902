"""What is asked of a judge, and the one of the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sgoif.tasks.labels.judgement import judge
from sgoif_bench.judgement.corpus import Kept

FDR = 0.1
Labels = NDArray[np.int64]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    """What a judge says of a run: of the training examples without decoys, then of the held-out ones."""

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

    def judge(self, run: Mapping[str, Any], constants: Any, *, decoys: bool) -> Answer:
        """The answer about a run, whose truth may not be looked at; without decoys, none are known."""


class Product:
    """`sgoif.tasks.labels.judgement`, whose constants stand in its modules."""

    def fit(self, runs: Sequence[Kept]) -> None:
        """Nothing is chosen here."""

    def judge(self, run: Mapping[str, Any], constants: Any, *, decoys: bool) -> Answer:
        training, anchors, planted = run["training"], run["anchors"], run["decoys"]
        if not decoys:  # their labels are wrong all the same, and nobody asked about them
            training = training.take(np.flatnonzero(~np.isin(training.index, planted)))
        classes = int(max(run["given"].max(), run["true"].max())) + 1
        verdict = judge(training, anchors, classes, planted if decoys else None)
        v = np.concatenate([verdict.suspicion, verdict.anchor_suspicion])
        return Answer(
            index=np.concatenate([verdict.training.index, verdict.anchors.index]),
            suspicion=verdict.suspicion,
            probability=verdict.curve.probability(v, verdict.rate.estimate),
            rate=verdict.rate,
            listed=verdict.selected(v, FDR),
        )
