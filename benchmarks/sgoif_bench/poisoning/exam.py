"""What a trained network is asked: how much of the clean test it answers rightly, and how often the attack succeeds.

Attack success is the share of attacked test inputs that are answered as the attacker wants. Of an attack with a trigger
these are test inputs of other classes with the trigger; K of them, drawn at random, are the *known* victims and take no
part in measuring. An attack on given targets has these few only: they are known, and success is measured on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.labels.problem import Labels, Problem
from sgoif_bench.poisoning.attacks.attack import Poisoned
from sgoif_bench.poisoning.case import Victims

STREAM = 53


@dataclass(frozen=True)
class Exam:
    """Test inputs, clean and attacked."""

    images: Tensor
    labels: Labels
    attacked: Victims | None = None
    """On which success is measured."""
    known: Victims | None = None
    """What methods that start from victims are given; before it is known which of them are answered as wanted."""

    @classmethod
    def of(cls, images: Tensor, labels: Labels, poisoned: Poisoned | None, known: int, seed: int) -> Exam:
        """The exam for an attack; without one, of clean inputs only."""
        if poisoned is None:
            return cls(images, labels)
        if poisoned.targets is not None:
            targets = Victims(poisoned.targets.images, poisoned.targets.wanted)
            return cls(images, labels, targets, targets)
        if poisoned.trigger is None or poisoned.wanted is None:
            raise SettingError("an attack needs targets, or a trigger with the class that it stands for")
        others = np.flatnonzero(labels != poisoned.wanted)
        if len(others) <= known:
            raise SettingError(
                f"{len(others)} test inputs can be attacked, {known} of them are to be known: none is left to measure"
                " success on; lower --known or use more test images"
            )
        order = np.random.default_rng([seed, STREAM]).permutation(others)
        parts = [
            Victims(poisoned.trigger(images[torch.from_numpy(rows)]), np.full(len(rows), poisoned.wanted))
            for rows in (np.sort(order[known:]), np.sort(order[:known]))
        ]
        return cls(images, labels, *parts)

    def accuracy(self, problem: Problem, model: nn.Module) -> float:
        """Share of the clean test inputs that are answered rightly."""
        return float((answers(problem, model, self.images) == self.labels).mean())

    def success(self, problem: Problem, model: nn.Module) -> float | None:
        """Share of the attacked inputs that are answered as wanted; None without an attack."""
        if self.attacked is None:
            return None
        return float((answers(problem, model, self.attacked.images) == self.attacked.wanted).mean())

    def noticed(self, problem: Problem, model: nn.Module) -> Victims | None:
        """The known victims that this network does answer as wanted; all of them where it answers none so."""
        if self.known is None:
            return None
        fooled = answers(problem, model, self.known.images) == self.known.wanted
        return self.known.take(fooled) if fooled.any() else self.known


def answers(problem: Problem, model: nn.Module, images: Tensor) -> Labels:
    """What the network says to images that are seen as the training data were."""
    labels = np.zeros(len(images), dtype=np.int64)
    seen = Problem(images, labels, problem.classes, problem.recipe, problem.device, problem.seed)
    seen.mean, seen.spread = problem.mean, problem.spread
    found: Labels = seen.predict(model).argmax(dim=1).cpu().numpy()
    return found
