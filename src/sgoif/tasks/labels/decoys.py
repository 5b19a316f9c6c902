"""Decoys: a few training labels made wrong on purpose, so that the run itself shows what a wrong label looks like.

    train_set, decoys = plant_decoys(train_set, classes=10)
    monitor = InfluenceMonitor(model, optimizer, anchors=holdout_set)
    ...                                              # the loop, on indexed(train_set)
    errors = LabelErrors(monitor, decoys=decoys)

The labels in storage are not touched. A decoy is trained on with a label drawn evenly from the other classes; after
training it is judged with the label it came with, by the finished model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from sgoif.core.data import Indexed, Part, read_labels, split_item
from sgoif.errors import SettingError
from sgoif.tasks.labels.channel import Labels

SHARE, LEAST, MOST_SHARE = 0.01, 200, 0.05
"""One label in a hundred, at least two hundred of them, but never more than one in twenty."""


@dataclass(frozen=True)
class Decoys:
    """Which examples were trained on with a wrong label, by their index in the loop."""

    index: Labels
    given: Labels
    """The labels they came with."""
    flipped: Labels
    """The labels they were trained on with."""
    dataset: Dataset[Any] | None = None
    """Where their inputs can be read, by index; without it they get no score of their own."""

    def __len__(self) -> int:
        return len(self.index)


def how_many(examples: int, share: float | None = None) -> int:
    """Number of decoys for so many training examples."""
    if share is not None:
        if not 0 <= share < 0.5:
            raise SettingError(f"share={share!r} of decoys is not valid: expected a number in [0, 0.5)")
        return round(share * examples)
    return min(max(round(SHARE * examples), LEAST), int(MOST_SHARE * examples))


def draw_decoys(labels: Labels, classes: int, count: int, seed: int = 0) -> tuple[Labels, Labels]:
    """Positions of `count` decoys, and for each a label drawn evenly from the other classes."""
    if classes < 2:
        raise SettingError(f"decoys need at least two classes; there are {classes}")
    generator = np.random.default_rng((seed, 0xDEC0))
    chosen = np.sort(generator.choice(len(labels), size=min(count, len(labels)), replace=False))
    flipped = (labels[chosen] + generator.integers(1, classes, size=len(chosen))) % classes
    return chosen.astype(np.int64), flipped.astype(np.int64)


def flip_some(
    labels: Labels, rows: Labels, classes: int, *, share: float | None = None, seed: int = 0
) -> tuple[Labels, Decoys]:
    """Labels to train on, some of those of `rows` made wrong, and which ones; the given labels stay as they are."""
    position, flipped = draw_decoys(labels[rows], classes, how_many(len(rows), share), seed)
    index = rows[position].astype(np.int64)
    trained = labels.copy()
    trained[index] = flipped
    return trained, Decoys(index, labels[index], flipped)


def plant_decoys(
    dataset: Dataset[Any],
    classes: int,
    *,
    share: float | None = None,
    seed: int = 0,
    labels: Sequence[int] | None = None,
) -> tuple[Dataset[Any], Decoys]:
    """Make some training labels wrong on the fly, and note which ones.

    Args:
        dataset: the training set, before `indexed`; a part of a split keeps its indices.
        classes: number of classes.
        share: share of the labels to change; one in a hundred, at least two hundred, unless given.
        seed: of the draw.
        labels: the label of every item, where reading all items would take long.

    Returns:
        The data set to train on, and the decoys, for `LabelErrors(monitor, decoys=decoys)`.

    Example:
        ```python
        from sgoif import indexed
        from sgoif.tasks import plant_decoys

        with_decoys, decoys = plant_decoys(train_set, classes=10)
        loader = DataLoader(indexed(with_decoys), batch_size=32, shuffle=True)
        print(len(decoys), "labels are wrong on purpose")
        ```
    """
    if isinstance(dataset, Indexed):
        raise SettingError("decoys must be planted before indices are added: indexed(plant_decoys(dataset, ...)[0])")
    total = len(dataset)  # type: ignore[arg-type]
    given = np.asarray(read_labels(dataset, range(total)) if labels is None else labels, dtype=np.int64)
    if len(given) != total:
        raise SettingError(f"{len(given)} labels were given for {total} examples")
    if total and not 0 <= given.min() <= given.max() < classes:
        raise SettingError(f"labels go from {given.min()} to {given.max()}, which does not fit classes={classes}")
    position, flipped = draw_decoys(given, classes, how_many(total, share), seed)
    if isinstance(dataset, Part):
        index = np.asarray(dataset.indices, dtype=np.int64)[position]
        whole: Dataset[Any] = Relabelled(dataset.dataset, dict(zip(index.tolist(), flipped.tolist(), strict=True)))
        return Part(whole, dataset.indices), Decoys(index, given[position], flipped, dataset.dataset)
    changed = Relabelled(dataset, dict(zip(position.tolist(), flipped.tolist(), strict=True)))
    return changed, Decoys(position, given[position], flipped, dataset)


class Relabelled(Dataset[Any]):
    """A data set in which some items have another label."""

    def __init__(self, dataset: Dataset[Any], labels: Mapping[int, int]) -> None:
        self.dataset = dataset
        self.changed = dict(labels)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, position: int) -> Any:
        item = self.dataset[position]
        label = self.changed.get(position + len(self) if position < 0 else position)
        if label is None:
            return item
        split_item(item)  # an item without a label is refused with the reason
        if isinstance(item, Mapping):
            key = next(k for k in ("labels", "label", "target", "y") if k in item)
            return {**item, key: _like(item[key], label)}
        return (item[0], _like(item[1], label), *item[2:])


def _like(old: Any, label: int) -> Any:
    """The label as what it takes the place of: a batch of tensors and plain numbers cannot be collated."""
    if isinstance(old, Tensor):
        return torch.full_like(old, label)
    if isinstance(old, np.ndarray):
        return np.full_like(old, label)
    return type(old)(label)
