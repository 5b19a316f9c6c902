"""Groups among the examples that were found: poison comes in families.

The examples of one label are grouped by the direction in which they differ from their class: spherical k-means on
w/‖w‖, started from examples far from each other. More than one group is believed only where the mean silhouette

    s = (b − a) / max(a, b)      a: mean distance to the own group, b: to the nearest other group

is large; an example's distance to a group is one minus the mean cosine to its members.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.core.types import Indices

MOST_GROUPS = 4
DISTINCT = 0.5
"""Least silhouette at which one group becomes several."""
LEAST_MEMBERS = 5
"""A split that leaves fewer in a group is not made."""
ROUNDS = 50
REPRESENTATIVES = 8


@dataclass(frozen=True)
class Family:
    """Examples that push towards one label in the same way."""

    index: Indices
    """The members, most probable first."""
    label: int
    """The label that they have and push to."""
    cohesion: float
    """Mean cosine between the ways in which members differ from their class and their common one; 1 = all alike."""
    representatives: Indices
    """A few members in the middle of the family."""
    resembles: dict[int, int] = field(default_factory=dict)
    """How many of them the model takes for each other label, were it not for the one they have; most first."""

    @property
    def size(self) -> int:
        return len(self.index)

    @property
    def description(self) -> str:
        return self.described()

    def described(self, names: Any = None) -> str:
        """One sentence, with these names of classes."""

        def named(label: int) -> str:
            return str(label if names is None else names[label])

        looks = ", ".join(f"{named(label)} ({count})" for label, count in list(self.resembles.items())[:3])
        resembling = f"; the model's next guesses: {looks}" if looks else ""
        noun = "example" if self.size == 1 else "examples"
        return f"{self.size} {noun} labelled {named(self.label)}, cohesion {self.cohesion:.2f}{resembling}"


def find_families(index: Indices, labels: Indices, whitened: Tensor, second: Indices, seed: int = 0) -> list[Family]:
    """Families of the found examples, largest first.

    `index` says what the examples are called, most probable first; `labels`, features w and the model's next guesses go
    with them row by row.
    """
    found: list[Family] = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        directions = torch.nn.functional.normalize(whitened[torch.from_numpy(rows)].float().cpu(), dim=1)
        for group in split(directions, seed):
            members = rows[group]
            mean = directions[torch.from_numpy(group)].mean(0)
            near = (directions[torch.from_numpy(group)] @ torch.nn.functional.normalize(mean, dim=0)).numpy()
            middle = np.sort(np.argsort(-near, kind="stable")[:REPRESENTATIVES])
            guesses = Counter(second[members].tolist()).most_common()
            found.append(Family(index[members], int(label), float(near.mean()), index[members[middle]], dict(guesses)))
    return sorted(found, key=lambda family: -family.size)


def split(directions: Tensor, seed: int = 0) -> list[Indices]:
    """Indices of each group; one group where nothing speaks for more."""
    count = len(directions)
    best, groups = DISTINCT, np.zeros(count, dtype=np.int64)
    for wanted in range(2, MOST_GROUPS + 1):
        if count < LEAST_MEMBERS * wanted:
            break
        trial = _spherical_means(directions, wanted, seed)
        sizes = np.bincount(trial, minlength=wanted)
        if sizes.min() >= LEAST_MEMBERS and (quality := silhouette(directions, trial)) > best:
            best, groups = quality, trial
    return [np.flatnonzero(groups == number) for number in np.unique(groups)]


def silhouette(directions: Tensor, groups: Indices) -> float:
    """Mean silhouette of unit vectors [n, D] in these groups."""
    which = torch.from_numpy(groups)
    member = torch.nn.functional.one_hot(which).double()
    sizes = member.sum(0)
    # The mean cosine to a group is the product with the sum of its members, so no table of all pairs is needed.
    distance = 1 - directions.double() @ (directions.double().T @ member) / sizes
    own = distance.gather(1, which.unsqueeze(1)).squeeze(1) * sizes[which] / (sizes[which] - 1).clamp_min(1)
    other = distance.scatter(1, which.unsqueeze(1), float("inf")).amin(1)
    return float(((other - own) / torch.maximum(own, other).clamp_min(1e-12)).mean())


def _spherical_means(directions: Tensor, wanted: int, seed: int) -> Indices:
    generator = np.random.default_rng(seed)
    centres = directions[torch.tensor([int(generator.integers(len(directions)))])]
    while len(centres) < wanted:
        nearest = (directions @ centres.T).amax(1)
        centres = torch.cat([centres, directions[nearest.argmin()].unsqueeze(0)])
    groups = (directions @ centres.T).argmax(1)
    for _ in range(ROUNDS):
        sums = torch.zeros(wanted, directions.shape[1]).index_add_(0, groups, directions)
        after = (directions @ torch.nn.functional.normalize(sums, dim=1).T).argmax(1)
        if torch.equal(after, groups):
            break
        groups = after
    return groups.numpy().astype(np.int64)
