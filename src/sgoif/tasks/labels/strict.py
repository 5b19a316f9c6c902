"""How many held-out labels are surely wrong: the noise rate by names that the model's own mistakes do not reach.

An example is *named* at a level q if the model gives a class that is not its label a probability that the surest 1 − q
of that class's own examples have (see `named`). Wrong labels are named as often as made-up ones would be, which can be
counted for every held-out example and every other label; mistakes ever less from level to level. So every level has a
rate,

    π(q) = n(q) / d(q),      n, d: named held-out examples, and named ones of as many with made-up labels,

too high at loose levels, where mistakes are named, and uncertain at strict ones, where little is. The loosest level is
taken whose names are not surely more than those of every stricter one lead to expect (Lepski's rule). The lower end of
that rate is what no model makes up: where it is next to zero, labels that look wrong may all be right.
"""

from __future__ import annotations

import numpy as np

from sgoif.tasks.labels.channel import ROWS_AT_ONCE, SMALLEST, exponent_of
from sgoif.tasks.labels.confused import STRICT, SURELY
from sgoif.tasks.labels.evidence import Evidence
from sgoif.tasks.labels.fusion import sharp_held_out
from sgoif.tasks.labels.likelihood import NoiseRate
from sgoif.tasks.labels.named import rate_of, thresholds

LEAST_NAMED = 50
"""Made-up labels that would have to be named at a level for it to count."""


def by_strict_names(anchors: Evidence, classes: int) -> NoiseRate:
    """The noise rate by the names of held-out examples, with a 90% interval of their number."""
    many = anchors.classes.slots is not None and len(anchors) * classes > ROWS_AT_ONCE
    found = (_levels_of_slots if many else _levels)(anchors, classes)
    found = [level for level in found if level[1] >= LEAST_NAMED] or found[:1]
    names, expected = found[_loosest(found)]
    spread = SURELY * np.sqrt(names + SURELY**2 / 4)
    middle = names + SURELY**2 / 2

    def rate(count: float) -> float:
        return min(rate_of(max(0.0, count) / max(expected, 1e-12), classes), 1.0)

    return NoiseRate(rate(names), rate(middle - spread), rate(middle + spread))


def _levels(anchors: Evidence, classes: int) -> list[tuple[float, float]]:
    """Numbers of named examples and of made-up labels that would be named, level by level."""
    p, rows, given = sharp_held_out(anchors, classes), np.arange(len(anchors)), anchors.given
    found: list[tuple[float, float]] = []
    for threshold in thresholds(p, given, STRICT):
        reached = p >= threshold
        others = reached.sum(1)
        named = others > reached[rows, given]
        made_up = (others[:, None] > reached).sum(1) - named
        found.append((float(named.sum()), float(made_up.sum()) / (classes - 1)))
    return found


def _levels_of_slots(anchors: Evidence, classes: int) -> list[tuple[float, float]]:
    """The same in the memory of the slots: all classes outside those of a row have one probability, the least."""
    slots, given = anchors.classes.slots, anchors.given
    assert slots is not None
    there = slots >= 0
    p = np.where(there, np.maximum(anchors.classes.mean.astype(np.float64), SMALLEST), 0.0)
    p, rest, left = np.c_[p, np.full(len(p), SMALLEST)], len(p[0]), classes - there.sum(1)
    own = np.where((slots == given[:, None]).any(1), (slots == given[:, None]).argmax(1), rest)
    times = np.c_[there, left].astype(np.float64)  # how many classes have each of these probabilities
    p /= (p * times).sum(1, keepdims=True)
    p = np.where(times > 0, p, 1.0) ** exponent_of(np.log(np.where(times > 0, p, 1.0)), own, times)
    p /= (p * times).sum(1, keepdims=True)
    mine, most = p[np.arange(len(p)), own], np.full((len(STRICT), classes), np.inf)
    for y in np.unique(given):
        most[:, y] = np.quantile(mine[given == y], STRICT)
    found: list[tuple[float, float]] = []
    for threshold in most:
        reached = there & (p[:, :rest] >= threshold[slots])
        outside = np.searchsorted(np.sort(threshold), p[:, rest], side="right")
        outside -= (there & (p[:, rest:] >= threshold[slots])).sum(1)
        others = reached.sum(1) + outside
        named = others > (mine >= threshold[given])
        made_up = np.select([others > 1, others == 1], [classes, classes - 1], 0) - named
        found.append((float(named.sum()), float(made_up.sum()) / (classes - 1)))
    return found


def _loosest(levels: list[tuple[float, float]]) -> int:
    """The loosest level, by numbers of named examples and of made-up labels, that agrees with all stricter ones."""
    for at, (names, expected) in enumerate(levels):
        kept = [(n, min(d / max(expected, 1e-12), 1.0)) for n, d in levels[at + 1 :]]
        if all(names * share - n <= SURELY * np.sqrt(max(names * share * (1 - share), 0.25)) for n, share in kept):
            return at
    return len(levels) - 1
