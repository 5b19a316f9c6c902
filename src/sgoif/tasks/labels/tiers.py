"""The ranking in three parts: surely wrong, worth a look, and fine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sgoif.tasks.labels.channel import Array
from sgoif.tasks.labels.judgement import Judgement


class Tier(NamedTuple):
    """So many examples, one after the other in the ranking, and the expected share of wrong labels among them."""

    name: str
    size: int
    low: float
    high: float


def tiers_of(verdict: Judgement, v: Array, surely: int) -> list[Tier]:
    """The parts of a ranking of examples with these v, of which the first are `surely` wrong."""
    v = np.sort(v)[::-1]
    ends = verdict.curve.probability(v, verdict.rate.low), verdict.curve.probability(v, verdict.rate.high)
    look = max(surely, round(verdict.rate.high * len(v)))
    parts = {"surely wrong": (0, surely), "worth a look": (surely, look), "fine": (look, len(v))}
    found = []
    for name, (start, stop) in parts.items():
        low, high = (float(p[start:stop].mean()) if stop > start else 0.0 for p in ends)
        found.append(Tier(name, stop - start, low, high))
    return found
