"""Which examples are deleted: singles at random and the most influential, groups at random, of one class, clustered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif_bench.unlearning.grid import Deletions

KINDS = ("random", "one class", "cluster")
CLASSES_LEAST = 2
"""A group of one class leaves at least one in so many of the class's examples."""


@dataclass(frozen=True)
class Deletion:
    """Rows that are deleted together, and how they were chosen."""

    kind: str
    rows: Tensor


def choose_singles(wanted: Deletions, influence: Tensor, seed: int) -> list[Deletion]:
    """Half the most influential by |influence| [n], half at random among the others."""
    half = wanted.singles // 2
    order = influence.abs().argsort(descending=True).cpu()
    if len(order) <= wanted.singles:
        raise SettingError(f"{wanted.singles} single deletions are too many for {len(order)} training examples")
    others = np.random.default_rng((seed, 1)).permutation(order[half:].numpy())[: wanted.singles - half]
    chosen = [("influential", int(row)) for row in order[:half]] + [("random", int(row)) for row in others]
    return [Deletion(kind, torch.tensor([row])) for kind, row in chosen]


def choose_groups(wanted: Deletions, features: Tensor, labels: Tensor, seed: int) -> list[Deletion]:
    """Groups of every kind in turn; a cluster is an example with its nearest neighbours among the features."""
    generator = np.random.default_rng((seed, 2))
    count = len(labels)
    if count < 2 * wanted.largest:
        raise SettingError(f"groups of {wanted.largest} are too large for {count} training examples; lower --largest")
    classes = labels.cpu().numpy()

    def at_random(size: int) -> Tensor:
        return torch.from_numpy(generator.choice(count, size, replace=False))

    def of_one_class(size: int) -> Tensor:
        members = np.flatnonzero(classes == classes[generator.integers(count)])
        return torch.from_numpy(generator.choice(members, min(size, -(-len(members) // CLASSES_LEAST)), replace=False))

    def clustered(size: int) -> Tensor:
        centre = features[int(generator.integers(count))].double()
        distance = torch.cat([(part.double() - centre).square().sum(1) for part in features.split(2**14)])
        return distance.argsort()[:size].cpu()

    draw: dict[str, Callable[[int], Tensor]] = dict(zip(KINDS, (at_random, of_one_class, clustered), strict=True))
    found = []
    for number in range(wanted.groups):
        kind = KINDS[number % len(KINDS)]
        size = int(generator.integers(wanted.smallest, wanted.largest + 1))
        found.append(Deletion(kind, draw[kind](size)))
    return found
