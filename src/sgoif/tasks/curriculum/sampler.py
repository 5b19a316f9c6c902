"""The weights of a curriculum as a choice of examples: whoever weighs less comes up less often.

    sampler = CurriculumSampler(curriculum, train_set, batch_size=128)
    loader = DataLoader(indexed(train_set), batch_size=128, sampler=sampler)

*draw*: an epoch has as many examples as the data set, each as often as its weight says. With the examples in random
order, W_i the sum of the weights up to the i-th and u ∈ [0, 1) drawn once,

    n_i = ⌊W_i + u⌋ − ⌊W_{i−1} + u⌋                     (systematic resampling)

so n_i is w_i rounded up or down, with mean w_i. The copies of one example are spread over the epoch, and no batch of
`batch_size` holds two of them.

*leave-out*: an epoch has every example once, but for those with a weight below one half. Of these a twentieth comes
along, others in every epoch.

An example that is not drawn is not scored either, and its evidence would never change again. So none is drawn less
often than once in twenty epochs, or its `floor` where that is more.

Several ranks that train together deal the examples of an epoch out among them; `batch_size` is that of one rank.

Losses must not be multiplied with the weights as well. Every epoch is a function of seed, epoch and weights: call
`set_epoch` as with torch's distributed sampler, or let the sampler count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
from torch.utils.data import Dataset, Sampler

from sgoif.core.data import indices_of
from sgoif.core.types import Indices
from sgoif.errors import SettingError
from sgoif.tasks.curriculum.curriculum import Curriculum
from sgoif.tasks.curriculum.summary import DOWN
from sgoif.tasks.labels.channel import Array

Way = Literal["draw", "leave-out"]
LEAST_SHARE = 0.05
"""Least share of the epochs in which an example comes up."""
TRIES = 100


class CurriculumSampler(Sampler[int]):
    """Positions in a data set, chosen by the weights of its examples.

    Args:
        curriculum: where the weights come from.
        data: the training set, or the index of every position in it.
        batch_size: that of the loader.
        way: `"draw"` examples as often as their weights say, or `"leave-out"` most of those weighed down.
        seed: of the draws.

    Example:
        ```python
        from sgoif import indexed
        from sgoif.tasks import Curriculum, CurriculumSampler

        sampler = CurriculumSampler(Curriculum(monitor), train_set, batch_size=32)
        loader = DataLoader(indexed(train_set), batch_size=32, sampler=sampler)
        train()                                             # the loop, as it is: losses are not weighed
        ```
    """

    def __init__(
        self,
        curriculum: Curriculum,
        data: Dataset[Any] | Sequence[int],
        *,
        batch_size: int,
        way: Way = "draw",
        seed: int = 0,
    ) -> None:
        if way not in get_args(Way):
            raise SettingError(f"way={way!r} is not valid: expected one of {', '.join(get_args(Way))}")
        if not isinstance(batch_size, int) or batch_size < 1:
            raise SettingError(f"batch_size={batch_size!r} is not valid: expected that of the loader")
        if curriculum.settings.robust:
            raise SettingError(
                "a robust loss counts every label and cannot be had by drawing examples: use Curriculum(monitor)"
                " without robust=True, or its weights and loss without a sampler"
            )
        self.curriculum = curriculum
        self.index: Indices = np.asarray(indices_of(data) if isinstance(data, Dataset) else data, dtype=np.int64)
        if not len(self.index):
            raise SettingError("the data set is empty: there is nothing to draw from")
        if len(np.unique(self.index)) < len(self.index):
            raise SettingError("two positions have the same index; every example must come once")
        self.batch_size, self.way, self.seed = batch_size, way, seed
        self.epoch = -1
        curriculum.sampled = True

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch, from 0, the next pass is; a resumed run then draws what it would have drawn."""
        self.epoch = epoch - 1

    def __len__(self) -> int:
        """Of the next epoch, if no judgement comes before it."""
        return self._whole() // self.curriculum.monitor.communicator.size

    def _whole(self) -> int:
        if self.way == "draw":
            return len(self.index)
        down = int((self._weights() < DOWN).sum())
        return len(self.index) - down + self._returning(down)

    def _returning(self, down: int) -> int:
        """How many of the examples that are left out come along."""
        return math.ceil(max(self.curriculum.settings.floor, LEAST_SHARE) * down)

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        self.curriculum.advance(self.index)  # judges, where it is time, before the weights are read
        generator = np.random.default_rng((self.seed, self.epoch))
        weights, communicator = self._weights(), self.curriculum.monitor.communicator
        if self.way == "leave-out":
            down = np.flatnonzero(weights < DOWN)
            guests = generator.choice(down, self._returning(len(down)), replace=False)
            order = generator.permutation(np.concatenate([np.flatnonzero(weights >= DOWN), guests]))
        else:
            order = spread_copies(
                copy_counts(np.maximum(weights, LEAST_SHARE), generator), self.batch_size * communicator.size, generator
            )
        each = len(order) // communicator.size
        yield from order[communicator.rank :: communicator.size][:each].tolist()

    def _weights(self) -> Array:
        return self.curriculum.values(int(self.index.max()) + 1)[self.index]


def copy_counts(weights: Array, generator: np.random.Generator) -> Indices:
    """How often each example comes up: its weight, scaled to mean one, rounded up or down at random; n in all."""
    order = generator.permutation(len(weights))
    sums = np.cumsum(weights[order]) * (len(weights) / weights.sum())
    sums[-1] = len(weights)
    marks = np.floor(sums + generator.random()).astype(np.int64)
    counts = np.empty(len(weights), dtype=np.int64)
    counts[order] = np.diff(marks, prepend=0)
    return counts


def spread_copies(counts: Indices, batch_size: int, generator: np.random.Generator) -> Indices:
    """Every position so often, in random order with copies far apart: no batch has a position twice.

    Where that cannot be, others take the place of copies.
    """
    positions = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
    # The k-th of m copies falls into the k-th of m equal parts of the epoch.
    place = (number + generator.random(len(positions))) / counts[positions]
    order: Indices = positions[np.argsort(place, kind="stable")]
    _separate_copies(order, batch_size, generator, len(counts))
    return order


def _separate_copies(order: Indices, batch_size: int, generator: np.random.Generator, size: int) -> None:
    """Exchange places until no batch holds a position twice; copies that fell together are few.

    Where no exchange is found, another position that the batch lacks comes in the copy's place.
    """

    def batch(place: int) -> Indices:
        start = place // batch_size * batch_size
        return order[start : start + batch_size]

    for at in _repeated(order, batch_size).tolist():
        mine = batch(at)
        for other in generator.integers(0, len(order), TRIES).tolist():
            theirs = batch(other)
            if other // batch_size != at // batch_size and order[at] not in theirs and order[other] not in mine:
                order[at], order[other] = order[other], order[at]
                break
        else:
            order[at] = generator.choice(np.setdiff1d(np.arange(size), mine))


def _repeated(order: Indices, batch_size: int) -> Indices:
    """Places whose position stands in the same batch already."""
    batch = np.arange(len(order)) // batch_size
    by_batch = np.lexsort((order, batch))
    same = (order[by_batch][1:] == order[by_batch][:-1]) & (batch[by_batch][1:] == batch[by_batch][:-1])
    found: Indices = by_batch[1:][same]
    return found
