"""How many labels are wrong: estimators of the literature, and the interval that they leave open.

Labels and a model alone cannot tell a wrong label from a right one that the model does not understand, so no estimator
is right everywhere. Each of these errs in a direction that is known:

- *Disagreement*: the share of held-out labels that are not the likeliest class of a model that never saw them. Mistakes
  of the model are in it too, so it is an upper bound, unless the model has learned the errors themselves.
- *Anchor points* (Liu & Tao 2016; Patrini et al. 2017): the same among the fifth of which the model is surest, class by
  class, where it makes few mistakes. Errors that follow looks are rarer there than elsewhere.
- *Anchor points of the training*: the same among training examples, as they were seen while the model trained. A model
  that learns labels by heart agrees with wrong ones too, so that this is less; there are many, so that chance is small.
- *Channel*: the mean P(wrong) of the held-out examples under the channel of the confident joint (Northcutt et al. 2021,
  `channel`). It is near the truth where the model is good, and too high where it is not.

    low  = min(anchor points of the training, lower end of the anchor points)     0 if the model knows too little
    high = upper end of the disagreement
    estimate = channel, moved into the interval

Ends are five percent points by the normal approximation. A model knows too little that agrees with held-out labels less
than a third of the way from chance to always. The list of surely wrong labels goes by the geometric mean of low end and
estimate (`listed`): by the low end alone it would be short wherever errors follow looks.
"""

from typing import NamedTuple

import numpy as np

from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.evidence import Evidence

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]

SUREST = 0.2
LEAST_AGREEMENT = 1 / 3
QUANTILE = 1.645


class NoiseRate(NamedTuple):
    """Share of wrong labels: an estimate, and the interval that the estimators leave open."""

    estimate: float
    low: float
    high: float

    @property
    def listed(self) -> float:
        """The rate that the list of surely wrong labels goes by."""
        return float(np.sqrt(self.low * self.estimate))


def noise_rate(
    training: Evidence, held_out: Evidence, classes: int, wrong: Array | None
) -> tuple[NoiseRate, dict[str, float]]:
    """The rate, and what each estimator says; `wrong` is P(wrong) of the held-out examples by the channel, if known."""
    against, sure = disagreement(held_out)
    all_of_them, anchor_points = float(against.mean()), float(against[sure].mean())
    seen, sure_seen = disagreement(training)
    found = {
        "disagreement": all_of_them,
        "anchor points": anchor_points,
        "anchor points of the training": float(seen[sure_seen].mean()),
        "channel": all_of_them / 2 if wrong is None else float(wrong.mean()),
    }
    high = min(1.0, all_of_them + _error(all_of_them, len(against)))
    low = max(0.0, min(anchor_points - _error(anchor_points, int(sure.sum())), found["anchor points of the training"]))
    low = min(low, high) if knows_enough(1 - all_of_them, classes) else 0.0
    return NoiseRate(float(np.clip(found["channel"], low, high)), low, high), found


def knows_enough(agreement: float, classes: int) -> bool:
    """Whether a model that agrees with so many held-out labels can say that some are surely wrong."""
    return agreement >= 1 / classes + LEAST_AGREEMENT * (1 - 1 / classes)


def disagreement(evidence: Evidence) -> tuple[Mask, Mask]:
    """Whether the likeliest class of each example is not its label, and whether the model is among the surest of it."""
    likeliest, probability = evidence.likeliest
    return ~evidence.agrees, surest(probability, likeliest)


def surest(probability: Array, likeliest: Labels) -> Mask:
    """Whether an example is among the fifth of those with the same likeliest class of which the model is surest."""
    order = np.lexsort((-probability, likeliest))
    count = np.bincount(likeliest)
    first = np.repeat(np.cumsum(count) - count, count)
    chosen = np.zeros(len(likeliest), dtype=bool)
    chosen[order] = np.arange(len(likeliest)) - first < np.repeat(np.ceil(SUREST * count), count)
    return chosen


def _error(share: float, count: int) -> float:
    """How far a share among so many may be off to one side."""
    return QUANTILE * float(np.sqrt(share * (1 - share) / count))
