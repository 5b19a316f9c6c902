"""How many labels are wrong, by the examples whose true class the model is surest of.

Where many labels are wrong and most errors of a class go to one or two others, a model learns those names as well. Its
disagreement with the labels then says little, and decoys, which are drawn evenly, stand out more than errors do: their
likelihood counts too few. What the channel believes about the true class, q(y | x) (see `channel`), does not depend on
how often a name is given. An example is of class b = argmax q, and its label is *contradicted* if it is another one.
Among the surest part a of every class, class by class since errors of some make all of theirs less sure,

    D(a) = Σ_b share of b · share of contradicted labels among the surest part a of b

is the noise rate and, on top, the mistakes of the model. Noise that does not depend on the image is the same for every
a; mistakes are fewer the surer the model is. So the largest part is taken whose D is not surely more than that of every
smaller one (Lepski's rule, as in `strict`). Where D keeps falling, as that of a weak model does, the smallest is left,
and what the model agrees with is far below what so little noise would allow. All of it takes for granted that no class
goes by the name of another. Where one is *swallowed*, given but hardly ever believed, its right labels are contradicted
however sure the model is, and nothing is vouched for.

D is counted on held-out examples. On training examples, whose own label has a part in q, decoys say how often a wrong
label is contradicted, and π follows from the ratio as in `named`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sgoif.tasks.labels.channel import Array, Labels, beliefs
from sgoif.tasks.labels.confused import SURELY
from sgoif.tasks.labels.evidence import Evidence
from sgoif.tasks.labels.fusion import ramp, sharp_held_out
from sgoif.tasks.labels.likelihood import NoiseRate
from sgoif.tasks.labels.named import rate_of, sharp, unlearned

PARTS = (1.0, 0.7, 0.5, 0.35, 0.25)
"""Parts of each class that are tried on held-out examples."""
PART, ENOUGH = 0.8, 20_000
"""The part of each class that is counted on training examples, and how many of these beside the decoys."""
SWALLOWED, PRESENT = 0.25, 0.5
"""How often a class is believed, over how often it is given, up to which it is swallowed, and from which it is not."""


class Sure(NamedTuple):
    """The noise rate by held-out examples, with a 90% interval of their number, and by training ones and decoys."""

    held_out: NoiseRate
    decoys: float
    trust: float = 1.0
    """0 to 1: whether no class is swallowed by another."""
    learned: float = 0.0
    """0 to 1: whether wrong names are so frequent that the model has learned them."""


def by_sure_classes(
    training: Evidence,
    planted: np.ndarray[tuple[int], np.dtype[np.bool_]],
    anchors: Evidence,
    classes: int,
    joint: Array,
) -> Sure:
    """Both rates, `planted` saying which of the training examples are decoys."""
    apart = beliefs(sharp_held_out(anchors, classes), joint)
    others = np.flatnonzero(~planted)
    rows = np.concatenate([others[:: 1 + len(others) // ENOUGH], np.flatnonzero(planted)])
    some, marked = training.take(rows), planted[rows]
    q = beliefs(sharp(some, marked, classes), joint)
    named = _surest(q, ~marked, PART) & (q.argmax(1) != some.given)
    seen = max(float(named[marked].sum()), 1.0) / max(int(marked.sum()), 1)
    rate = rate_of(float(named[~marked].mean()) / seen, classes)
    return Sure(contradicted(apart, anchors.given), rate, unswallowed(apart, anchors.given), 1 - unlearned(joint))


def unswallowed(q: Array, given: Labels) -> float:
    """0 to 1: how far every class that is given is believed."""
    count, believed = (np.bincount(y, minlength=q.shape[1]) for y in (given, q.argmax(1)))
    return ramp(float((believed[count > 0] / count[count > 0]).min()), SWALLOWED, PRESENT)


def contradicted(q: Array, given: Labels) -> NoiseRate:
    """D of the largest part that no smaller one surely contradicts."""
    believed = q.argmax(1)
    everyone, wrong = np.ones(len(q), dtype=bool), believed != given
    found = []
    for part in PARTS:
        chosen = _surest(q, everyone, part)
        count = np.bincount(believed[chosen], minlength=q.shape[1])
        share = np.bincount(believed[chosen & wrong], minlength=q.shape[1]) / np.maximum(count, 1)
        found.append((float((np.bincount(believed, minlength=q.shape[1]) * share).sum()) / len(q), int(count.sum())))
    rate, size = found[_largest(found)]
    error = SURELY * float(np.sqrt(max(rate * (1 - rate), 1 / size) / size))
    return NoiseRate(rate, max(0.0, rate - error), min(1.0, rate + error))


def _surest(
    q: Array, among: np.ndarray[tuple[int], np.dtype[np.bool_]], part: float
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows are as sure of their class as that part of the rows `among` that have it."""
    believed, top = q.argmax(1), q.max(1)
    least = np.full(q.shape[1], np.inf)
    for y in np.unique(believed[among]):
        least[y] = np.quantile(top[among & (believed == y)], 1 - part)
    return np.asarray(top >= least[believed])


def _largest(found: list[tuple[float, int]]) -> int:
    """The first of nested parts, by rate and number, whose rate agrees with all smaller ones."""
    for at, (rate, count) in enumerate(found):
        spread = rate * (1 - rate)
        if all(rate - r <= SURELY * np.sqrt(max(spread * (1 / n - 1 / count), 0)) for r, n in found[at + 1 :]):
            return at
    return len(found) - 1
