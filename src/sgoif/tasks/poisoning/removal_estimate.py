"""How many examples would have to go for the victims to get their wrong label no longer.

Removing an example from the training set and training again is the truth, and too slow to be asked often. What is asked
here instead: a linear classifier on frozen features,

    min over V of  mean over the kept i of  cross-entropy(V f_i, y_i) + ½ λ ‖V‖²

a convex problem, solved with and without the k examples of highest score. f are the inputs of the head at first. But
the body of a network is trained on the poison as well and may put triggered inputs into the wrong class by itself, in
which case no head can undo it. Then the pooled outputs of earlier stages are asked, that first which shows the
behaviour most clearly with all examples; used is the first level at which it is gone without the suspicious ones.

The behaviour counts as undone when the median over victims of the probability of their wrong label has fallen to half
of what it was. As a control, as many other examples of the same labels are removed at random: if that undoes it too,
the count says nothing about the examples found, and there is no estimate.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sgoif.core.types import Indices

PENALTY = 1e-3
"""λ, for features of unit variance."""
ITERATIONS = 100
MOST_EXAMPLES = 20_000
"""Refits see at most so many examples: all that may be removed, and a random part of the others."""
SHOWN = 0.5
"""A level shows the behaviour if the median probability of the wrong label is at least this with all examples."""
UNDONE = 0.5
"""The behaviour is undone when that has fallen to this share of what it was."""
POINTS = 10
"""Numbers of removed examples that the curve shows, spread geometrically, before the exact count is looked for."""
LARGEST_SHARE = 0.5
"""At most this share of the examples of a label is taken away."""


@dataclass(frozen=True)
class RemovalEstimate:
    """What removing the examples of highest score does to the victims, by a linear refit."""

    count: int
    """So many have to go."""
    before: float
    """Median probability of the wrong label over victims, with all examples."""
    after: float
    """The same without `count` examples."""
    control: float
    """The same without `count` other examples of the same labels, drawn at random."""
    level: str
    """The features that were refitted: "head", or the name of an earlier stage."""
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(number removed, median probability), by rising number."""


@dataclass(frozen=True)
class Level:
    """Features of the training examples and of the victims at one depth of the network."""

    name: str
    training: Tensor
    """[N, D]"""
    victims: Tensor
    """[V, D]"""


class _Refit:
    """A linear classifier on one level's features, refitted without some rows."""

    def __init__(self, level: Level, labels: Tensor, classes: int, chosen: Indices, wrong: Tensor) -> None:
        self.name = level.name
        device = labels.device
        rows = torch.from_numpy(chosen)
        x = level.training[rows.to(level.training.device)].to(device).double()
        self._centre, self._scale = x.mean(0), x.var(0, unbiased=False).mean().sqrt().clamp_min(1e-12)
        self._x, self._y = self._prepared(x), labels[rows.to(device)]
        self._victims, self._wrong = self._prepared(level.victims.to(device).double()), wrong.to(device)
        self._start = x.new_zeros(classes, self._x.shape[1])

    def _prepared(self, x: Tensor) -> Tensor:
        return torch.cat([(x - self._centre) / self._scale, x.new_ones(len(x), 1)], dim=1)

    def without(self, rows: Indices) -> float:
        """Median probability of the wrong label over the victims after a refit without these rows."""
        kept = torch.ones(len(self._x), dtype=torch.bool, device=self._x.device)
        kept[torch.from_numpy(rows).to(kept.device)] = False
        weights = fit_linear(self._x[kept], self._y[kept], self._start)
        self._start = weights  # the next refit is near this one
        wrong = (self._victims @ weights.T).softmax(1).gather(1, self._wrong.unsqueeze(1))
        return float(wrong.median())


def estimate_removal(
    levels: Sequence[Level], labels: Tensor, classes: int, order: Indices, wrong: Tensor, most: int, seed: int = 0
) -> RemovalEstimate | None:
    """How many of `order`, rows by falling score, to remove; None where no level can tell.

    `wrong` are the labels of the victims, `most` the largest number to try.
    """
    generator = np.random.default_rng(seed)
    label_rows = np.flatnonzero(np.isin(labels.cpu().numpy(), wrong.numpy()))
    order = order[np.isin(order, label_rows)]
    most = min(most, len(order), int(LARGEST_SHARE * len(label_rows)))
    if most < 1:
        return None
    others = np.setdiff1d(np.arange(len(labels)), order[:most])
    others = generator.permutation(others)[: max(0, MOST_EXAMPLES - most)]
    chosen = np.concatenate([order[:most], np.sort(others)])
    # The first `most` rows of a refit are the suspicious ones, in order.
    innocent = np.flatnonzero(np.isin(chosen, label_rows))
    innocent = generator.permutation(innocent[innocent >= most])
    for refit, before in _levels_with_behaviour(levels, labels, classes, chosen, wrong):
        undone = UNDONE * before
        curve = {0: before, most: refit.without(np.arange(most))}
        if curve[most] >= undone:
            continue
        for count in sorted({round(float(count)) for count in np.geomspace(1, most, POINTS)}):
            if count not in curve:
                curve[count] = refit.without(np.arange(count))
        count = _first(refit, curve, undone)
        control = refit.without(innocent[:count])
        if control >= undone:
            return RemovalEstimate(count, before, curve[count], control, refit.name, sorted(curve.items()))
    return None


def _levels_with_behaviour(
    levels: Sequence[Level], labels: Tensor, classes: int, chosen: Indices, wrong: Tensor
) -> Iterator[tuple[_Refit, float]]:
    """Levels that show the behaviour, with its probability: the head first, then those that show it best."""
    for group in (levels[:1], levels[1:]):
        found = []
        for level in group:
            refit = _Refit(level, labels, classes, chosen, wrong)
            if (before := refit.without(np.zeros(0, dtype=np.int64))) >= SHOWN:
                found.append((refit, before))
        yield from sorted(found, key=lambda pair: -pair[1])


def _first(refit: _Refit, curve: dict[int, float], undone: float) -> int:
    """The smallest number that undoes the behaviour, to within a twentieth, starting from the points of the curve."""
    high = min(count for count, value in curve.items() if value < undone)
    low = max(count for count, value in curve.items() if count < high)
    while high - low > max(1, high // 20):
        middle = (low + high) // 2
        curve[middle] = refit.without(np.arange(middle))
        low, high = (low, middle) if curve[middle] < undone else (middle, high)
    return high


def fit_linear(x: Tensor, y: Tensor, start: Tensor, penalty: float = PENALTY) -> Tensor:
    """The weights [C, D] of penalised softmax regression, to a small gradient."""
    weights = start.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=ITERATIONS, tolerance_grad=1e-7, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(x @ weights.T, y) + 0.5 * penalty * weights.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    return weights.detach()
