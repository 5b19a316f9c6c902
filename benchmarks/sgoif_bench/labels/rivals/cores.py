"""CORES²: a loss that rewards being sure, and a sieve of what the network then believes less than an average label.

Cheng, Zhu, Li, Gong, Sun, Liu: Learning with Instance-Dependent Label Noise: A Sample Sieve Approach. ICLR 2021.

With cross entropies ℓ_k = −log p_k and the shares π of the given labels among all,

    L    = mean over the kept of  ℓ_y − β_t Σ_k π_k ℓ_k
    kept = { i : ℓ_y − (1/K) Σ_k ℓ_k ≤ 0 }

The second sum, the confidence regulariser, is the loss of a label drawn at random, which a network lowers least by
learning labels by heart. Numbers of the paper, for 100 epochs, as shares: β is 0 for the first 10%, rises to 2 over the
next 30% and stays; as in the authors' code, the sieve begins after 30% and all are kept before. p is kept from zero by
1e-8 in the regulariser and the sieve, as theirs. They divide the learning rate by 1 + β; here it is the loss.

Only the first phase, the sieve, finds wrong labels; the second (CORES²*, consistency training on what was sieved out)
trains on and is left out.

Score. Suspicion is ℓ_y − (1/K) Σ_k ℓ_k in the training steps of the last quarter of the epochs; flagged is what is
above the sieve's threshold, 0. Cost: one training.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem
from sgoif_bench.labels.rivals.common import MeanPerExample, is_late

LARGEST_BETA = 2.0
WARM_UP, RISE = 0.1, 0.3
"""Shares of the epochs without regulariser, and over which it rises."""
SIEVE_AFTER = 0.3
LEAST = 1e-8


def beta(epoch: int, epochs: int) -> float:
    """β_t of an epoch, from 1."""
    return LARGEST_BETA * min(max(((epoch - 1) / epochs - WARM_UP) / RISE, 0.0), 1.0)


def sieves(epoch: int, epochs: int) -> bool:
    """Whether an epoch, from 1, leaves anything out."""
    return epoch - 1 > SIEVE_AFTER * epochs


def sieve_values(logits: Tensor, labels: Tensor) -> Tensor:
    """ℓ_y − (1/K) Σ_k ℓ_k, [n]; above 0 an example is left out."""
    return F.cross_entropy(logits, labels, reduction="none") - _losses(logits).mean(dim=1)


def regularised(logits: Tensor, labels: Tensor, prior: Tensor, weight: float) -> Tensor:
    """ℓ_y − β Σ_k π_k ℓ_k, [n]."""
    return F.cross_entropy(logits, labels, reduction="none") - weight * _losses(logits) @ prior


def _losses(logits: Tensor) -> Tensor:
    return -(logits.softmax(dim=1) + LEAST).log()


def cores(problem: Problem, tell: Say) -> Outcome:
    """Train with the regulariser and the sieve; suspicion is the late value of the sieve."""
    epochs, epoch = problem.recipe.epochs, 1
    given = torch.from_numpy(problem.labels).to(problem.device)
    prior = torch.bincount(given, minlength=problem.classes) / len(problem)
    late = MeanPerExample(len(problem), problem.device)

    def loss(logits: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        values = sieve_values(logits.detach(), labels)
        if is_late(epoch, epochs):
            late.add(index, values)
        kept = values <= 0 if sieves(epoch, epochs) else torch.ones_like(values, dtype=torch.bool)
        weight = beta(epoch, epochs)
        each = regularised(logits, labels, prior, weight) / (1 + weight)
        return (each * kept).sum() / kept.sum().clamp_min(1)

    def on_epoch(completed: int) -> None:
        nonlocal epoch
        epoch = completed + 1
        tell(f"cores: epoch {completed} of {epochs}")

    problem.fit(problem.new_model(), problem.batches(), loss=loss, on_epoch=on_epoch)
    suspicion = late.result()
    return Outcome(suspicion, flagged=suspicion > 0, details={"beta": LARGEST_BETA})
