"""From what is believed about labels to weights of examples.

For example i with given label y_i, let p_i be the calibrated probability that the label is wrong, h_i ∈ [0, 1] zero
where its influence is helpful beyond doubt and one where it is harmful, and j_i the label that it should have if its
own is wrong. What an example gives up is

    t_i = min(q_i h_i, 1 − floor),        q_i = σ(s logit p_i + c)        with the c for which Σ q = Σ p

where s is the `sharpness`. With s = 1, q is p. Of all ways to give up Σ p in all, the one that takes most of it from
wrong labels is to take everything from the most suspicious (s → ∞), and a network learns an example of half the weight
by heart as well as one of the whole (Byrd and Lipton, ICML 2019), so half measures cost. But where the noise rate is
overestimated, a threshold takes all weight from right labels near the border between two classes, which a classifier
needs most. The default lies between; and where it is not even certain that there is noise, s is nearer to one:
1 + caution (sharpness − 1).

An example that helps held-out data keeps its weight whatever else speaks against it, and one that is merely hard, with
a high loss but a low probability of a wrong label, gives up next to nothing.

Per class k with n_k examples, Σ t_i over its own examples is what it lost, and over the examples that seem to belong to
it what it gained; m_k = n_k − lost_k + gained_k is then its estimated true size. Its examples share the total

    T_k = n_k max(class_floor, c (m_k / n_k)^balance)        with the c for which Σ T_k = n
    w_i = (1 − t_i) f_k / mean,        f_k = min(boost, T_k / (n_k − lost_k)),        k = y_i

With balance = 0 every class keeps the weight it had. With 1 it gets that of its estimated true size; if p is right, w
is then the importance weight of Liu and Tao (TPAMI 2016), and the weighed loss is an unbiased estimate of that on
right labels. But a class that the model underrates would lose weight, be learned less, and be underrated more; so the
default goes half of the way, and never below `class_floor`.

A class gives up no more than a share η_k, estimated on held-out examples (`class_limits`), and no more than `boost` can
make up for. Where it would, the odds t / (1 − t) of all its examples are lowered by a common factor, which spares the
doubtful ones first. A class that the model has not learned yet looks wrong from end to end: without this it would lose
all its weight and never be learned.
"""

from dataclasses import dataclass

import numpy as np

from sgoif.tasks.curriculum.settings import CurriculumSettings
from sgoif.tasks.labels.calibration import sigmoid
from sgoif.tasks.labels.channel import Array, Labels

FEW = 10.0
"""Held-out examples that the noise rate of the whole data set counts for in that of a class."""
CERTAIN = 1e-9
"""A probability is never closer to one than this."""
HALVINGS = 40
"""Of the interval in which the logarithm of a factor is searched."""
EXTREME = 60.0
"""Log-odds of what is certain."""


@dataclass(frozen=True)
class ExampleWeights:
    """Weights of some examples, and what they are made of."""

    weights: Array
    """w [n], mean one."""
    factor: Array
    """f / mean [C]: the weight of an example whose label is certainly right."""
    taken: Array
    """t [n]."""
    sizes: Array
    """m [C]."""


def weigh(
    probability: Array,
    given: Labels,
    suggested: Labels,
    limits: Array,
    settings: CurriculumSettings,
    harmful: Array | None = None,
) -> ExampleWeights:
    """Weights from probabilities of wrong labels [n], given and suggested labels [n] and η [C]; `harmful` is h."""
    classes, boost = len(limits), settings.boost
    sizes: Array = np.bincount(given, minlength=classes).astype(np.float64)
    taken = np.minimum(probability if harmful is None else probability * harmful, 1 - settings.floor)
    taken = _limit_by_class(taken, given, np.minimum(limits, 1 - 1 / boost) * sizes)
    lost, gained = (np.bincount(label, weights=taken, minlength=classes) for label in (given, suggested))
    left = np.maximum(sizes - lost, np.finfo(float).tiny)
    growth = (left + gained) / np.maximum(sizes, 1)
    factor = np.minimum(boost, _totals(growth, sizes, settings.class_floor, settings.balance) / left)
    weights = (1 - taken) * factor[given]
    mean = float(weights.mean())
    return ExampleWeights(weights / mean, factor / mean, taken, left + gained)


def _totals(growth: Array, sizes: Array, class_floor: float, balance: float) -> Array:
    """T [C]: what each class weighs in all, by the growth m / n of each."""
    wanted = growth**balance
    low, high = 0.0, 1 / max(float(wanted[sizes > 0].min()), np.finfo(float).tiny)
    for _ in range(2 * HALVINGS):
        middle = (low + high) / 2
        above = float((sizes * np.maximum(class_floor, middle * wanted)).sum()) > sizes.sum()
        low, high = (low, middle) if above else (middle, high)
    totals: Array = sizes * np.maximum(class_floor, low * wanted)
    return totals


def _limit_by_class(taken: Array, given: Labels, allowed: Array) -> Array:
    """Odds lowered in the classes that would give up more than they may."""
    lost = np.bincount(given, weights=taken, minlength=len(allowed))
    taken = taken.copy()
    for label in np.flatnonzero(lost > allowed).tolist():
        rows = np.flatnonzero(given == label)
        taken[rows] = lower_odds(taken[rows], float(allowed[label]))
    return taken


def lower_odds(p: Array, total: float) -> Array:
    """Probabilities with their odds lowered by the common factor that leaves this total; as they are if it is less."""
    if p.sum() <= total:
        return p
    if total <= 0:
        return np.zeros_like(p)
    odds = p / np.maximum(1 - p, CERTAIN)
    low, high = -60.0, 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        part = np.exp(middle) * odds
        low, high = (low, middle) if (part / (1 + part)).sum() > total else (middle, high)
    part = np.exp(low) * odds
    out: Array = part / (1 + part)
    return out


def sharpen(p: Array, sharpness: float) -> Array:
    """q: odds to the power of the sharpness, then all multiplied with the factor that leaves their total as it was."""
    if sharpness == 1 or not 0 < p.sum() < len(p):
        return p
    inside = np.clip(p, CERTAIN, 1 - CERTAIN)
    logits = sharpness * (np.log(inside) - np.log1p(-inside))
    low, high = -float(logits.max()) - EXTREME, -float(logits.min()) + EXTREME
    for _ in range(2 * HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if sigmoid(logits + middle).sum() > p.sum() else (middle, high)
    return sigmoid(logits + low)


def believed_share(before: float | None, rate: float) -> float:
    """The share of an estimated noise rate that is believed, given the one before: less while it falls; 0 at first."""
    if before is None:
        return 0.0
    return 1.0 if rate >= before else max(0.0, 1 - (before - rate) / rate) if rate > 0 else 0.0


def class_limits(joint: Array | None, held_out: Array, rate: float, sizes: Array) -> Array:
    """η [C]: what a class may give up, by how many of its held-out examples (`held_out` [C] counts) look wrong.

    The joint of given and true labels of the held-out examples says how many labels of a class are wrong, and their
    number h how sure that is. With ρ the size of the class over the mean size, at most one,

        share = (h own + FEW rate) / (h + FEW)
        error = √(share (1 − share) / (h + FEW))
        η = ρ (share + error) + (1 − ρ) nearest

    where nearest is the point of share ± error that is nearest to the rate of the whole data set. A class of usual size
    may exceed its share by the standard error, so that what is left to it does not hang on which of its examples were
    held out. A rare one is learned late and badly, and most of its few held-out examples then look wrong: it gives up
    more than others only as far as that leaves no doubt.
    """
    own = np.full(len(held_out), rate)
    if joint is not None:
        given = joint.sum(1)
        own = np.where(given > 0, 1 - np.diag(joint) / np.maximum(given, np.finfo(float).tiny), rate)
    count = held_out + FEW
    share = (held_out * own + FEW * rate) / count
    error = np.sqrt(share * (1 - share) / count)
    usual = np.minimum(sizes / max(float(sizes.mean()), 1.0), 1.0)
    limits: Array = usual * (share + error) + (1 - usual) * np.clip(rate, share - error, share + error)
    return np.clip(limits, 0.0, 1.0)


def harmfulness(mean: Array, half_width: Array) -> Array:
    """h of an influence with the interval mean ± half width: 1 from a mean of zero on, 0 where all of it is below."""
    known = np.isfinite(mean) & np.isfinite(half_width)
    width = np.where(known, np.maximum(half_width, np.finfo(float).tiny), 1.0)
    h: Array = np.clip(1 + np.where(known, mean, 0.0) / width, 0, 1)
    return h
