"""Right labels that a half-taught model takes for wrong ones, class by class.

A model that cannot tell shirts from coats yet disagrees with right labels of both as if they were wrong, and where it
knows all other classes it passes for competent. What tells the two apart is how sure it is. An example is named at a
level q where its probability of a class that is not its label reaches the q-quantile of that class among the examples
that were given it. Wrong labels are named as often as decoys are, whatever the level, while a right label of a class
that looks alike is named at a loose level and hardly at a strict one. So names over decoys *fall* from one to the other
where the model takes right labels for wrong ones, and the strict level says how many labels of each class c are wrong:

    π_c = strict names of c / (labels of c · share of decoys that are strictly named)

Few examples of a class are named strictly. So the rates of all classes have a common prior, a gamma distribution with
their mean and their variance beyond that of counting, and each is taken one standard deviation high. Then the labels of
c above a point on the score v hold no more wrong ones than π_c times the share G(v) of the decoys above it. The slope
of π_c G over the rank within the class, made to fall from the top down, is the most that P(wrong) can be there. A class
that the model knows has no right labels as high as decoys, and its limit is one. Of a class with most of whose right
labels the model disagrees nothing is called more likely wrong than right.

This is left out where names do not surely fall, and as far as the model is competent enough to have no class that it
takes for another, has learned wrong names (see `named`) or labels are wrong where classes look alike (see `lookalike`):
people's errors fade from loose to strict names as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.fusion import competence, ramp
from sgoif.tasks.labels.named import thresholds

LOOSE, STRICT = 0.3, (0.5, 0.6, 0.7, 0.8, 0.9)
"""The loose level, among the labels of a class that are right, and the strict ones that are tried."""
LEAST_STRICT = 20
"""Decoys that have to be named at a level for their share to be known."""
SURELY = 1.64
"""Standard errors by which names have to fall."""
CONFUSED, CLEAR = 0.86, 0.9
"""Competence up to which a model may take whole classes for others, and from which it does not."""
UNRELATED, RELATED = 0.5, 0.75
"""How far noise may follow looks for names to count in full, and from where on they do not count."""
LEAST_OF_CLASS, KNOWN = 10, 0.5
"""Held-out examples of a class that tell whether it is known, and the share of its right labels that has to agree; also
the most that is said about labels of a class that is not."""
POINTS = 1000


@dataclass(frozen=True)
class Limits:
    """The largest P(wrong) of a label by its class and its place on v, and which classes are not known."""

    points: list[Array]
    """Some v of each class, largest first."""
    most: list[Array]
    """P(wrong) from each of these points up to the one before, at most."""
    unknown: Labels

    def of(self, given: Labels, v: Array) -> Array:
        out = np.ones(len(v))
        for y in np.unique(given):
            points, mine = self.points[y], given == y
            if len(points):
                place = len(points) - np.searchsorted(points[::-1], v[mine], side="right")
                out[mine] = self.most[y][np.minimum(place, len(points) - 1)]
        return out


def class_limits(
    probabilities: Array,
    given: Labels,
    planted: np.ndarray[tuple[int], np.dtype[np.bool_]],
    v: Array,
    held_out: tuple[Labels, Array],
    rate: float,
    weight: float,
) -> Limits | None:
    """Limits from training examples, decoys (`planted`) among them; None where names do not surely fall.

    `held_out` has the number of held-out examples of each class and the share of their labels that the model agrees
    with, `rate` is the noise rate that was found, `weight` how far the limits count.
    """
    classes = probabilities.shape[1]
    loose = rate + LOOSE * (1 - rate)
    levels = [loose, *(level for level in STRICT if level > loose)]
    found = [named for named in _named(probabilities, given, planted, levels) if named[planted].sum() >= LEAST_STRICT]
    if len(found) < 2 or not surely_falls(found[0], found[-1], planted):
        return None
    strict, own = found[-1], ~planted
    rates = class_rates(
        np.bincount(given[strict & own], minlength=classes).astype(np.float64),
        np.bincount(given[own], minlength=classes).astype(np.float64) * float(strict[planted].mean()),
        int(strict[planted].sum()),
    )
    unknown = _unknown(*held_out, rates)
    points, most = [], []
    decoys = np.sort(v[planted])
    for y in range(classes):
        mine = np.sort(v[own & (given == y)])[::-1]
        step = max(1, len(mine) // POINTS)
        mine = mine[step - 1 :: step]
        above = 1 - np.searchsorted(decoys, mine) / len(decoys)
        slope = np.minimum(falling(np.diff(rates[y] * above, prepend=0.0) * len(mine)), KNOWN if y in unknown else 1.0)
        points.append(mine)
        most.append(slope**weight)
    return Limits(points, most, unknown)


def confusable(known: float, trust: float, looks: float) -> float:
    """0 to 1: how far limits count by competence (`known`), trust in naming, and whether the noise follows looks."""
    return trust * (1 - ramp(known, CONFUSED, CLEAR)) * (1 - ramp(looks, UNRELATED, RELATED))


def surely_falls(
    loose: np.ndarray[tuple[int], np.dtype[np.bool_]],
    strict: np.ndarray[tuple[int], np.dtype[np.bool_]],
    planted: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> bool:
    """Whether there are fewer names for each decoy that is named at the strict level than at the loose one."""
    counts = [float(named[some].sum()) for named in (loose, strict) for some in (~planted, planted)]
    if not counts[0] or not counts[3]:
        return False
    if not counts[2]:
        return True
    fall = np.log(counts[0] / counts[1]) - np.log(counts[2] / counts[3])
    error = np.sqrt(1 / counts[3] - 1 / counts[1] + 1 / counts[2] - 1 / counts[0])
    return bool(fall > SURELY * error)


def class_rates(named: Array, expected: Array, decoys: int) -> Array:
    """Share of wrong labels of each class, a standard deviation high; `expected` names if all labels were wrong."""
    total = max(float(expected.sum()), 1e-12)
    mean = max(float(named.sum()) / total, 1e-6)
    own = named / np.maximum(expected, 1e-12)
    beyond = float((expected / total * (own - mean) ** 2).sum()) - mean * (len(named) - 1) / total
    prior = mean / max(beyond, 1e-12)
    shape, size = named + mean * prior, expected + prior
    high = (shape + np.sqrt(shape)) / size * (1 + 1 / np.sqrt(decoys))
    out: Array = np.minimum(high / (1 + mean / (len(named) - 1)), 1.0)
    return out


def falling(values: Array) -> Array:
    """The nearest sequence that never rises (pool adjacent violators)."""
    means: list[float] = []
    counts: list[int] = []
    for value in values.tolist():
        means.append(value)
        counts.append(1)
        while len(means) > 1 and means[-2] < means[-1]:
            last, count = means.pop(), counts.pop()
            means[-1] = (means[-1] * counts[-1] + last * count) / (counts[-1] + count)
            counts[-1] += count
    out: Array = np.repeat(np.array(means), counts)
    return out


def _named(
    probabilities: Array, given: Labels, planted: np.ndarray[tuple[int], np.dtype[np.bool_]], levels: list[float]
) -> list[np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Which examples are named at each level."""
    sure = thresholds(probabilities[~planted], given[~planted], levels)
    others = probabilities.copy()
    others[np.arange(len(given)), given] = -1.0
    return [(others >= threshold).any(1) for threshold in sure]


def _unknown(count: Labels, agreed: Array, rates: Array) -> Labels:
    """Classes of whose held-out labels the model agrees with too few, were so many wrong; beyond chance."""
    classes = len(rates)
    beyond = (agreed - 1 / classes) / (1 - 1 / classes)
    known = [competence(float(a), min(float(r), 0.9), classes) for a, r in zip(beyond, rates, strict=True)]
    found: Labels = np.flatnonzero((count >= LEAST_OF_CLASS) & (np.array(known) < KNOWN))
    return found
