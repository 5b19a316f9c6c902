"""A look at a run that is still going on: the worst images so far, and what can be said about the whole."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from sgoif.core.score_table import ScoreTable
from sgoif.monitor import InfluenceMonitor
from sgoif.tasks.labels.evidence import from_ledger, training_evidence
from sgoif.tasks.labels.judgement import LEAST_EXAMPLES, judge

SHOWN = 24
"""Images in a look."""


@dataclass(frozen=True)
class Estimate:
    """What the run would say about all labels if it ended here."""

    step: int
    noise_rate: float
    low: float
    high: float
    aupr: float
    """Area under precision and recall of the ranking, as the probabilities themselves have it."""


@dataclass(frozen=True)
class Look:
    """The worst images at a step."""

    step: int
    rows: list[dict[str, Any]]

    @classmethod
    def at(cls, step: int, scores: ScoreTable) -> Self:
        """The most harmful images."""
        influence = np.nan_to_num(scores["influence"], nan=-np.inf)
        worst = np.argsort(-influence, kind="stable")[:SHOWN]
        rows = [
            {
                "row": int(scores["index"][k]),
                "influence": float(scores["influence"][k]),
                "low": float(scores["interval_low"][k]),
                "high": float(scores["interval_high"][k]),
                "harmed": int(scores["group"][k]),
            }
            for k in worst
            if np.isfinite(influence[k])
        ]
        return cls(step, rows)


def estimated(step: int, monitor: InfluenceMonitor) -> Estimate | None:
    """Noise rate and quality of the ranking at this moment; None while too little is known or learned."""
    training = training_evidence(monitor)
    anchors = from_ledger(monitor.anchor_ledger, monitor.held_out_indices())
    if min(len(training), len(anchors)) < LEAST_EXAMPLES:
        return None
    verdict = judge(training, anchors, monitor.classes)
    if not verdict.knows:
        return None
    rate = verdict.rate
    return Estimate(step, rate.estimate, rate.low, rate.high, expected_aupr(verdict.probability))


def expected_aupr(probability: np.ndarray[Any, Any]) -> float:
    """Σ p_i · mean(p_1 … p_i) / Σ p_i, worst first: precision at every wrong label, if each p is right."""
    p = np.sort(probability)[::-1]
    precision = np.cumsum(p) / np.arange(1, len(p) + 1)
    return float((p * precision).sum() / max(p.sum(), np.finfo(float).tiny))
