"""Symmetric cross entropy: the usual loss plus its mirror image, which wrong labels cannot pull at without bound.

Wang, Ma, Chen, Luo, Yi, Bailey: Symmetric Cross Entropy for Robust Learning with Noisy Labels. ICCV 2019.

For probabilities p and the one-hot label q of class y,

    CE  = −Σ_k q_k log p_k = −log p_y
    RCE = −Σ_k p_k log q_k = −A Σ_{k≠y} p_k = −A (1 − p_y)      with log 0 set to A < 0
    L   = α CE + β RCE

with α = 0.1 and β = 1, the authors' weights for CIFAR-10, for every data set. (They use other α for other data sets,
among them 6 on CIFAR-100; that would be tuning with knowledge we do not have.) The paper says A = −4; the authors' code
clips the one-hot label at 1e-4 and takes the natural logarithm, so that what was run has A = log 1e-4 = −9.21, which is
what stands here. p is clipped at 1e-7 there, which changes A Σ p by 1e-6 per class and is left out.

Score. The loss has no detector and no threshold of its own. What it gives is a network that withstands wrong labels, so
suspicion is that network's cross entropy with the given label in evaluation mode, averaged over the last quarter of
the epochs. Cost: one training.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem
from sgoif_bench.labels.rivals.common import LateLosses

ALPHA, BETA = 0.1, 1.0
LOG_OF_ZERO = math.log(1e-4)
"""A."""
Loss = Callable[[Tensor, Tensor], Tensor]
"""The mean loss of a batch from its logits and labels."""


def symmetric_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss, averaged over the batch."""
    right = logits.softmax(dim=1).gather(1, labels[:, None]).squeeze(1)
    return ALPHA * F.cross_entropy(logits, labels) - BETA * LOG_OF_ZERO * (1 - right).mean()


def train(
    problem: Problem, on_epoch: Callable[[nn.Module, int], None], loss: Loss = symmetric_cross_entropy
) -> nn.Module:
    """Train with the symmetric loss; `on_epoch` sees the network after every epoch, from 1."""
    model = problem.new_model()
    return problem.fit(
        model,
        problem.batches(),
        loss=lambda logits, labels, index: loss(logits, labels),
        on_epoch=lambda epoch: on_epoch(model, epoch),
    )


def sce(problem: Problem, tell: Say) -> Outcome:
    """Train with the symmetric loss; suspicion is the late cross entropy of the given label."""
    late = LateLosses(problem, tell, "sce")
    train(problem, late.end_of_epoch)
    details = {"alpha": ALPHA, "beta": BETA, "log_of_zero": LOG_OF_ZERO}
    return Outcome(late.result(), trainings=1.0, details=details)
