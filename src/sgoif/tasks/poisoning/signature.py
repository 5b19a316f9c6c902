"""The one-sided signature of a small, tight group within a class, when nothing is known about it.

A group with share ε whose features lie δ beyond those of its class gives the class's features w (`geometry`), seen
along the direction u of that shift, the third moment

    E[(uᵀw)³] = ε (1 − ε)(1 − 2ε) δ³ + what the class has by itself

which, other than the variance that spectral signatures go by (Tran, Li, Madry: Spectral Signatures in Backdoor Attacks,
2018), does not see the two-sided scatter that every class has, and says on which side the small group is. Directions in
which the third moment is at a maximum are found by the tensor power iteration u ← E[w (uᵀw)²], from many starts, within
the few directions of largest variance. A class has several of them by itself, often larger ones; those are long tails,
though, and not groups. So every candidate is turned towards the difference of the means of the two groups that a
mixture along it tells apart (`mixture`), and judged by how far they stand apart then.

Cross-fitting. In many dimensions some direction looks like that by chance, and an example far away makes one of its
own. So each example is projected on a difference of means that was taken without its part of the class, a fifth; only
where to start from is common to all. With p_i these projections, the strength of a candidate is

    T = E[p³] · apart

about zero where the direction meant nothing. apart, the separation times the contrast of the two modes of p, is what
tells a group from a tail, and 0 where the upper mode is no small part of the class or hardly anybody. The candidate
that stands furthest apart is the signature of the class.

Halves. A clean-label attack may need half of a class, where the third moment vanishes with 1 − 2ε. Such a group is much
of the variance, though, so the directions of largest variance are candidates too. An upper mode above a third of the
class counts if the two stand so far apart that they are no parts of one thing, and ε (1 − ε) δ³ takes the place of the
third moment. Which half is the planted one, nothing here can tell.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from sgoif.core.precision import full_precision
from sgoif.tasks.poisoning.mixture import MOST_SHARE, Mixture, Values, fit_mixtures, robust_units

SUBSPACE = 10
"""Directions of largest variance in which the third moment is looked at."""
OVERSAMPLED, SUBSPACE_ROUNDS = 6, 6
POWER_ROUNDS, FAR_STARTS = 40, 24
CANDIDATES, SAME = 6, 0.95
"""Most maxima that are looked at closer, and the cosine above which two of them are one."""
FITTED = 4
"""Most candidates that are cross-fitted: those that stand furthest apart with all examples."""
TURNS = 2
"""How often a direction is turned towards the difference of the two means, with all examples and then without some."""
FOLDS = 5
SEARCH_ROUNDS, SEARCH_BINS = 40, 128
"""Mixtures are fitted less closely while directions are turned."""
LEAST_EXAMPLES = 20
"""A class with fewer has no signature."""
LARGEST_SHARE, LEAST_MEMBERS = 0.35, 5
"""An upper mode with more of the class is a part of what the class is, and one of fewer examples is chance."""
LARGE_APART = 6.0
"""Separation and contrast from which on an upper mode may be larger all the same, though not larger than the rest."""
LARGE_STARTS = 2
"""Directions of largest variance that are looked at, each in both senses."""


@dataclass(frozen=True)
class Signature:
    """What was found about one class."""

    projection: Values
    """p, [n]"""
    strength: float
    """T; 0 where there is nothing."""

    @property
    def values(self) -> Values:
        return self.strength * self.projection


@full_precision
def signature(whitened: Tensor, seed: int = 0, folds: int = FOLDS) -> Signature:
    """The cross-fitted signature of one class, whose features w are [n, D]."""
    count = len(whitened)
    if count < LEAST_EXAMPLES:
        return Signature(np.zeros(count), 0.0)
    whole = whitened - whitened.mean(0)
    starts = most_separated(whole, refine_directions(whole, candidate_directions(whole, seed)))
    parts = torch.from_numpy(np.random.default_rng(seed).permutation(count) % folds).to(whitened.device)
    projections = whitened.new_zeros(len(starts), count)
    for part in range(folds):
        fitted = whitened[parts != part]
        centre = fitted.mean(0)
        directions = refine_directions(fitted - centre, starts)
        projections[:, parts == part] = directions @ (whitened[parts == part] - centre).T
    p = projections.double().cpu().numpy()
    units = np.stack([robust_units(row) for row in p])
    mixtures = fit_mixtures(units)
    third = np.array([_third_moment(*triple) for triple in zip(p, units, mixtures, strict=True)])
    distances = np.array([group_separation(mixture, count) for mixture in mixtures]) * (third > 0)
    best = int(distances.argmax())
    return Signature(p[best], float(third[best] * distances[best]))


def group_separation(mixture: Mixture, count: int) -> float:
    """How far a group among so many stands apart; 0 where the upper mode is too large or too small for one."""
    largest = LARGEST_SHARE
    if min(mixture.separation, mixture.contrast) >= LARGE_APART:
        largest = MOST_SHARE - 1 / count  # a fit that would be the larger half ends at the bound
    fits = mixture.share <= largest and mixture.share * count >= LEAST_MEMBERS
    return mixture.distinctness if fits else 0.0


def most_separated(centred: Tensor, directions: Tensor) -> Tensor:
    """The few directions along which a group stands furthest apart, with all examples."""
    projections = (directions @ centred.T).double().cpu().numpy()
    values = np.stack([robust_units(row) for row in projections])
    mixtures = fit_mixtures(values, rounds=SEARCH_ROUNDS, bins=SEARCH_BINS)
    distances = [group_separation(mixture, len(centred)) for mixture in mixtures]
    return directions[np.argsort(distances, kind="stable")[::-1][:FITTED].copy()]


def _third_moment(p: Values, units: Values, mixture: Mixture) -> float:
    """E[p³], not below zero; for a large group what it would be without the factor that vanishes at one half."""
    if mixture.share <= LARGEST_SHARE:
        return max(0.0, float((p**3).mean()))
    upper = mixture.posterior(units) > 0.5
    if not 0 < upper.sum() < len(p):
        return 0.0
    between = max(0.0, float(p[upper].mean() - p[~upper].mean()))
    return mixture.share * (1 - mixture.share) * between**3


@full_precision
def refine_directions(centred: Tensor, directions: Tensor) -> Tensor:
    """Directions [m, D] after turning them with centred features [n, D]."""
    for _ in range(TURNS):
        projections = (directions @ centred.T).double().cpu().numpy()
        values = np.stack([robust_units(row) for row in projections])
        mixtures = fit_mixtures(values, rounds=SEARCH_ROUNDS, bins=SEARCH_BINS)
        weights = np.stack([mixture.posterior(row) for mixture, row in zip(mixtures, values, strict=True)])
        directions = turn_to_means(centred, directions, torch.from_numpy(weights).to(centred))
    return directions


def turn_to_means(centred: Tensor, directions: Tensor, weights: Tensor) -> Tensor:
    """Directions [m, D] towards the differences of means by weights [m, n]; unchanged where a group is too small."""
    total, rest = weights.sum(1, keepdim=True), (1 - weights).sum(1, keepdim=True)
    between = weights @ centred / total.clamp_min(1e-6) - (1 - weights) @ centred / rest.clamp_min(1e-6)
    return torch.where((total >= 2) & (rest >= 2), normalize(between, dim=1), directions)


@full_precision
def candidate_directions(centred: Tensor, seed: int = 0) -> Tensor:
    """Unit directions [m, D]: those of largest third moment, the largest first, then those of largest variance."""
    basis = top_directions(centred, SUBSPACE, seed)
    x = centred @ basis
    axes = torch.eye(x.shape[1], device=x.device, dtype=x.dtype)
    far = x[x.square().sum(1).topk(min(FAR_STARTS, len(x))).indices]
    guesses = torch.cat([axes, -axes, normalize(far, dim=1)]).T
    for _ in range(POWER_ROUNDS):
        guesses = normalize(x.T @ (x @ guesses).square(), dim=0)
    order = (x @ guesses).pow(3).mean(0).argsort(descending=True, stable=True)
    alike = (guesses.T @ guesses).cpu()
    kept: list[int] = []
    for number in order.tolist():
        if all(float(alike[number, other]) < SAME for other in kept):
            kept.append(number)
        if len(kept) == CANDIDATES:
            break
    largest = basis[:, :LARGE_STARTS].T
    return torch.cat([normalize((basis @ guesses[:, kept]).T, dim=1), largest, -largest])


@full_precision
def top_directions(centred: Tensor, count: int, seed: int = 0) -> Tensor:
    """An orthonormal basis [D, k] of the directions of largest variance, by subspace iteration, largest first."""
    size = centred.shape[1]
    if size <= count + OVERSAMPLED:
        vectors: Tensor = torch.linalg.eigh(centred.T @ centred).eigenvectors
        return vectors.flip(1)[:, : min(count, size)]
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(size, count + OVERSAMPLED, generator=generator).to(centred)
    for _ in range(SUBSPACE_ROUNDS):
        basis = torch.linalg.qr(centred.T @ (centred @ basis)).Q
    seen = centred @ basis
    inner = torch.linalg.eigh(seen.T @ seen).eigenvectors.flip(1)[:, :count]
    found: Tensor = basis @ inner
    return found
