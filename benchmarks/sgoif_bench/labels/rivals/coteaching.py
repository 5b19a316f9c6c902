"""Co-teaching: two networks, each taught by what the other finds easy.

Han, Yao, Yu, Niu, Xu, Hu, Tsang, Sugiyama: Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy
Labels. NeurIPS 2018.

Of a batch D, network f picks the share R(T) with the smallest loss, D_f, and so does g, D_g. Then f takes a step on D_g
and g a step on D_f. The share starts at 1, while networks learn what is common, and falls to 1 − τ over T_k epochs,
before they learn by heart what is wrong:

    R(T) = 1 − min(τ T / T_k, τ),    T the epochs completed,    T_k = 10 epochs, or all of a shorter training

T_k is the authors' number and not their share, 10 of 200: what networks must know before they can tell which losses to
let go takes epochs, however many are to follow.

τ is the noise rate. The authors take it as known, or inferred on validation data. It is not known here, so it is
estimated on the problem's hold-out, whose labels are as noisy as the others. A plain network trained on the rest
predicts it; where that network is most certain (the most certain quarter of each predicted class, an empirical version
of the anchor points by which Liu and Tao, TPAMI 2016, estimate noise rates) its prediction is taken for the truth, and

    τ = 1 − Σ_k P(ŷ = k) P(y = ŷ | ŷ = k, certain)

`coteaching_known` is told τ, as the authors are.

Score. Suspicion is the loss of an example in the training steps of the last quarter of the epochs, mean of the two
networks. Flagged is what lay outside the small-loss share in most of these steps. Cost: two trainings, and, unless τ is
told, the one on the part outside the hold-out that it is estimated with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Labels, Outcome, Problem
from sgoif_bench.labels.rivals.common import MeanPerExample, is_late
from sgoif_bench.optimizers import OneCycle

GRADUAL_EPOCHS = 10
"""T_k, where training has so many epochs."""
CERTAIN_SHARE = 0.25
"""Of each predicted class, the share with the highest confidence that the noise rate is read from. A larger one takes
more of the network's own mistakes for noise, a smaller one leaves too few examples to count."""
MAX_FORGET_RATE = 0.9
"""τ never exceeds this: some examples must be left to learn from."""
_FIRST, _SECOND, _ESTIMATOR = 0, 1, 2

Lessons = Iterable[tuple[Tensor, Tensor, Tensor, int]]
"""(x, y, index, how many to keep) of the batches of an epoch."""


def gradual_epochs(epochs: int) -> int:
    """T_k of a training of so many epochs."""
    return min(GRADUAL_EPOCHS, epochs)


def remember_share(completed: int, epochs: int, forget_rate: float) -> float:
    """R(T) after so many completed epochs of so many in all."""
    return 1 - min(forget_rate * completed / gradual_epochs(epochs), forget_rate)


def kept(share: float, count: int) -> int:
    """How many of so many examples a share is: rounded down, at least one."""
    return max(1, math.floor(share * count + 1e-9))


def small_loss(losses: Tensor, keep: int) -> Tensor:
    """Positions of the `keep` smallest losses, smallest first."""
    return losses.detach().argsort(stable=True)[:keep]


class Look(NamedTuple):
    """What the two networks made of one batch."""

    losses: Tensor
    """[2, n]"""
    picked: Tensor
    """Positions that each network picked for the other, [2, keep]."""

    def kept_share(self) -> Tensor:
        """The share of the two networks that picked each example, [n]."""
        return torch.zeros_like(self.losses).scatter_(1, self.picked, 1.0).mean(dim=0)


OnLook = Callable[[int, Tensor, Look], None]
"""Told (epoch, index, look) of every batch."""


class Pair:
    """Two networks with different initial weights that teach each other."""

    def __init__(self, problem: Problem, steps: int, numbers: tuple[int, int] = (_FIRST, _SECOND)) -> None:
        self.models: list[nn.Module] = [problem.new_model(number) for number in numbers]
        self._autocast = problem.autocast
        self._optimizers: list[tuple[torch.optim.Optimizer, OneCycle]] = [
            problem.optimizer(model, steps) for model in self.models
        ]

    def train(self) -> None:
        """Put both networks into training mode."""
        for model in self.models:
            model.train()

    def step(self, x: Tensor, y: Tensor, keep: int) -> Look:
        """Each network takes a step on the `keep` examples of this batch that are easiest for the other."""
        losses = []
        for model in self.models:
            with self._autocast():
                logits = model(x)
            losses.append(F.cross_entropy(logits.float(), y, reduction="none"))
        picked = [small_loss(each, keep) for each in losses]
        for own, of_peer, (optimizer, schedule) in zip(losses, reversed(picked), self._optimizers, strict=True):
            own[of_peer].mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        return Look(torch.stack(losses).detach(), torch.stack(picked))


def teach(
    pair: Pair,
    epochs: int,
    lessons: Callable[[int], Lessons],
    on_look: OnLook,
    tell: Say,
    on_epoch: Callable[[int], None] = lambda epoch: None,
) -> int:
    """Train the pair on `lessons(epoch)` of each epoch from 1 on; returns how many examples one network has seen."""
    seen = 0
    for epoch in range(1, epochs + 1):
        pair.train()
        for x, y, index, keep in lessons(epoch):
            on_look(epoch, index, pair.step(x, y, keep))
            seen += len(y)
        tell(f"epoch {epoch} of {epochs}")
        on_epoch(epoch)
    return seen


def noise_rate(probabilities: Tensor, labels: Labels) -> float:
    """Share of wrong labels, from held-out probabilities [n, K]: disagreement where the prediction is most certain."""
    confidence, predicted = (part.cpu().numpy() for part in probabilities.max(dim=1))
    agreement = 0.0
    for label in np.unique(predicted):
        members = np.flatnonzero(predicted == label)
        certain = members[np.argsort(-confidence[members], kind="stable")]
        certain = certain[: math.ceil(CERTAIN_SHARE * len(members))]
        agreement += len(members) / len(labels) * float((labels[certain] == label).mean())
    return 1 - agreement


def estimate_forget_rate(problem: Problem, tell: Say) -> tuple[float, float]:
    """τ by a plain network and the hold-out; and the cost in trainings."""
    training, held_out = (np.array(part.indices) for part in problem.split())
    model = problem.fit(
        problem.new_model(_ESTIMATOR),
        problem.batches(training, number=_ESTIMATOR),
        on_epoch=lambda epoch: tell(f"co-teaching, noise rate: epoch {epoch} of {problem.recipe.epochs}"),
    )
    rate = noise_rate(problem.predict(model, held_out).softmax(dim=1), problem.labels[held_out])
    return min(rate, MAX_FORGET_RATE), len(training) / len(problem)


def train(
    problem: Problem, forget_rate: float, on_look: OnLook, tell: Say, on_epoch: Callable[[Pair, int], None]
) -> Pair:
    """Train a pair by the recipe; `on_epoch` sees it after every epoch, from 1."""
    batches, epochs = problem.batches(), problem.recipe.epochs

    def lessons(epoch: int) -> Lessons:
        share = remember_share(epoch - 1, epochs, forget_rate)
        return ((x, y, index, kept(share, len(y))) for x, y, index in batches)

    pair = Pair(problem, epochs * len(batches))
    teach(pair, epochs, lessons, on_look, tell, lambda epoch: on_epoch(pair, epoch))
    return pair


def coteaching(problem: Problem, tell: Say) -> Outcome:
    """Train a pair; suspicion is the late loss, flagged what the networks mostly kept from each other."""
    forget_rate, cost = estimate_forget_rate(problem, tell)
    tell(f"co-teaching: noise rate estimated as {forget_rate:.3f}")
    return _taught(problem, forget_rate, cost, tell)


def coteaching_known(problem: Problem, tell: Say) -> Outcome:
    """The same with the share of wrong labels that is told."""
    if problem.known is None:
        raise SettingError("Co-teaching with a known noise rate was not told one; give the problem `known`")
    return _taught(problem, min(problem.known.rate, MAX_FORGET_RATE), 0.0, tell)


def _taught(problem: Problem, forget_rate: float, cost: float, tell: Say) -> Outcome:
    epochs = problem.recipe.epochs
    losses, keeps = (MeanPerExample(len(problem), problem.device) for _ in range(2))

    def on_look(epoch: int, index: Tensor, look: Look) -> None:
        if is_late(epoch, epochs):
            losses.add(index, look.losses.mean(dim=0))
            keeps.add(index, look.kept_share())

    train(problem, forget_rate, on_look, lambda line: tell(f"co-teaching: {line}"), lambda pair, epoch: None)
    return Outcome(
        losses.result(),
        flagged=keeps.result() < 0.5,
        trainings=2 + cost,
        details={"forget_rate": forget_rate, "gradual_epochs": gradual_epochs(epochs)},
    )
