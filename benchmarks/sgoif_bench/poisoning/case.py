"""What every method is given once the network is trained, and what it must return.

All methods look at the same network, trained once on the poisoned data, at the same checkpoints of that training and at
the same data. Which examples are poison is never within their reach: the judge keeps that. Told is only their number,
to methods whose own rule needs it. *Victims* are inputs whose wrong answer somebody has noticed; a method that knows of
none is given none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.batches import normalise
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Labels, Problem, Rows, Scores
from sgoif_bench.labels.rivals.influence_common import HeadGradients, head_gradients
from sgoif_bench.labels.rivals.tracin import checkpoint_rates


@dataclass(frozen=True)
class Victims:
    """Inputs that are answered wrongly because of the poison."""

    images: Tensor
    """uint8 [K, C, H, W]"""
    wanted: Labels
    """The wrong answers."""

    def __len__(self) -> int:
        return len(self.wanted)

    def take(self, rows: Rows | NDArray[np.bool_]) -> Victims:
        """Some of them."""
        return Victims(self.images[torch.from_numpy(rows)], self.wanted[rows])

    def prepared(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """As the network takes them, with their wrong answers, on its device."""
        x = normalise(self.images.to(problem.device), problem.mean, problem.spread)
        return x, torch.from_numpy(self.wanted).to(problem.device)


@dataclass(frozen=True)
class Finding:
    """What a method says."""

    suspicion: Scores
    """For every training example, higher = more likely poison."""
    selected: Rows | None = None
    """The examples that the method itself would remove; None where it has no rule of its own."""
    details: dict[str, Any] = field(default_factory=dict)


class Checkpoints:
    """Weights along a training, in main memory, with the mean learning rate since the checkpoint before."""

    def __init__(self, problem: Problem) -> None:
        self.rates = checkpoint_rates(problem, len(problem.batches()))
        self._states: dict[int, dict[str, Tensor]] = {}

    def keep(self, model: nn.Module, epoch: int) -> None:
        """Look at the end of an epoch; only some are kept."""
        if epoch in self.rates:
            state = model.state_dict()
            self._states[epoch] = {name: value.detach().cpu().clone() for name, value in state.items()}

    def models(self, problem: Problem) -> Iterator[tuple[float, nn.Module]]:
        """(learning rate, network) of every checkpoint; the network is the same object each time."""
        model = problem.new_model()
        for epoch, state in self._states.items():
            model.load_state_dict(state)
            yield self.rates[epoch], model.eval()


@dataclass
class Case:
    """A trained network and the data it was trained on."""

    problem: Problem
    model: nn.Module
    checkpoints: Checkpoints
    poison: int
    """How many examples are poison."""
    victims: Victims | None = None
    tell: Say = lambda message: None

    @cached_property
    def end(self) -> HeadGradients:
        """Gradients of the last layer at the end of training, of every example."""
        return head_gradients(self.problem, self.model)

    @cached_property
    def features(self) -> Tensor:
        """What goes into the last linear layer, [N, D] on the device."""
        return self.problem.features(self.model)

    @cached_property
    def labels(self) -> Tensor:
        """Given labels on the device."""
        return torch.from_numpy(self.problem.labels).to(self.problem.device)

    def known(self) -> Victims:
        """The victims, for a method that cannot do without."""
        if self.victims is None or not len(self.victims):
            raise SettingError("this method starts from victims, and none are known")
        return self.victims

    def victim_problem(self) -> Problem:
        """The victims with their wrong answers, seen as the training data are."""
        known, whole = self.known(), self.problem
        problem = Problem(known.images, known.wanted, whole.classes, whole.recipe, whole.device, whole.seed)
        problem.mean, problem.spread = whole.mean, whole.spread
        return problem
