"""Symmetric cross entropy: the usual loss plus its mirror image, which wrong labels cannot pull at without bound.

Wang, Ma, Chen, Luo, Yi, Bailey: Symmetric Cross Entropy for Robust Learning with Noisy Labels. ICCV 2019.

For probabilities p and the one-hot label q of class y,

    CE  = −Σ_k q_k log p_k = −log p_y
    RCE = −Σ_k p_k log q_k = −A Σ_{k≠y} p_k = −A (1 − p_y)      with log 0 set to A < 0
    L   = α CE + β RCE

Defaults of the paper: A = −4 throughout, α = 0.1 and β = 1 on CIFAR-10. We keep these for every data set. (The authors
use other α for other data sets, among them 6 on CIFAR-100; that would be tuning with knowledge we do not have.)

Score. The loss has no detector and no threshold of its own. What it gives is a network that withstands wrong labels, so
suspicion is that network's cross entropy with the given label in evaluation mode, averaged over the last quarter of
the epochs. Cost: one training.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from sgoif.tasks.curriculum.robust_loss import ALPHA, BETA, LOG_OF_ZERO, symmetric_cross_entropies
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem
from sgoif_bench.labels.rivals.common import LateLosses


def symmetric_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss, averaged over the batch."""
    return symmetric_cross_entropies(logits, labels).mean()


def train(problem: Problem, on_epoch: Callable[[nn.Module, int], None]) -> nn.Module:
    """Train with the symmetric loss; `on_epoch` sees the network after every epoch, from 1."""
    model = problem.new_model()
    return problem.fit(
        model,
        problem.batches(),
        loss=lambda logits, labels, index: symmetric_cross_entropy(logits, labels),
        on_epoch=lambda epoch: on_epoch(model, epoch),
    )


def sce(problem: Problem, tell: Say) -> Outcome:
    """Train with the symmetric loss; suspicion is the late cross entropy of the given label."""
    late = LateLosses(problem, tell, "sce")
    train(problem, late.end_of_epoch)
    details = {"alpha": ALPHA, "beta": BETA, "log_of_zero": LOG_OF_ZERO}
    return Outcome(late.result(), trainings=1.0, details=details)
