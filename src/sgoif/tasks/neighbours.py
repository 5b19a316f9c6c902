"""What the neighbours of an example say of its label, by features of networks: an opinion that needs no training.

    a · z(−margin of the neighbours' votes)

The margin is the share of votes for the given label less the largest for another, the votes the mean over all kinds of
features. a says how much better than chance the neighbours agree with labels, over how much better a trained network
does that has not seen them; where features tell a network more than distances show, neighbours count for less.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sgoif.core.types import Array, Indices
from sgoif.errors import SettingError
from sgoif.features.reduced import neighbours_votes, principal
from sgoif.tasks.deviations import standard


def against(
    features: Sequence[Tensor], labels: Tensor, classes: int, agreement: float, group: Tensor | None = None
) -> Array:
    """How much the neighbours speak against each label, in deviations, times a.

    Args:
        features: of one kind or several, [n, width] each, such as `features.reduced.principal` makes.
        labels: the given ones, int64 [n].
        classes: how many there are.
        agreement: the share of held-out labels that a trained network agrees with.
        group: rows of the same number are not neighbours of each other; by default each has its own.
    """
    group = torch.arange(len(labels)) if group is None else group
    votes = torch.stack([neighbours_votes(kind, labels, classes, group) for kind in features]).mean(0)
    margin, chance = votes_margin(votes, labels), 1 / classes
    share = np.clip((float((margin > 0).mean()) - chance) / max(agreement - chance, 1e-9), 0.0, 1.0)
    return np.asarray(share * standard(-margin))


def against_by_index(
    features: Sequence[Array],
    index: Indices,
    labels: Indices,
    classes: int,
    agreement: float,
    device: torch.device = torch.device("cpu"),  # noqa: B008
) -> Array:
    """The same by the index of each example, for those of `index` and their `labels`; others get zero."""
    order = np.argsort(index)
    rows, given = index[order], torch.from_numpy(labels[order])
    count = int(rows[-1]) + 1
    for kind in features:
        if kind.ndim != 2 or len(kind) < count:
            raise SettingError(f"features of shape {tuple(kind.shape)} do not fit examples up to number {count - 1:,}")
    found = np.zeros(count)
    where = device if device.type == "cuda" else "cpu"  # others have no float64
    found[rows] = against([principal(kind[rows], device=where) for kind in features], given, classes, agreement)
    return found


def votes_margin(votes: Tensor, labels: Tensor) -> Array:
    """The share of votes for the given label, less the largest for another."""
    rows = torch.arange(len(labels))
    others = votes.clone()
    others[rows, labels] = -1
    return np.asarray((votes[rows, labels] - others.max(1).values).double().numpy())
