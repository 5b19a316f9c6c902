"""Data maps: confidence in the given label over training, and how much it varies.

Swabha Swayamdipta, Roy Schwartz, Nicholas Lourie, Yizhong Wang, Hannaneh Hajishirzi, Noah Smith, Yejin Choi: "Dataset
Cartography: Mapping and Diagnosing Datasets with Training Dynamics", EMNLP 2020. With p_e the probability of the given
label in epoch e,

    confidence  μ = 1/E Σ_e p_e(y),        variability  σ = √(1/E Σ_e (p_e(y) − μ)²)

The authors find wrong labels where confidence is low: suspicion = 1 − μ. Probabilities are those of the training
batches themselves. There is no threshold of its own (the authors train a small classifier on clean labels, which
nobody has here); the details sum the variability up.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem
from sgoif_bench.labels.rivals.influence_common import to_scores, train


class DataMap:
    """Running confidence and variability of every example."""

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self._sum = torch.zeros(size, dtype=torch.float64, device=device)
        self._squares = torch.zeros_like(self._sum)
        self._met = torch.zeros_like(self._sum)

    @torch.no_grad()
    def update(self, logits: Tensor, labels: Tensor, index: Tensor) -> None:
        """Take in one batch as the training step saw it; a batch must not hold an example twice."""
        index = index.to(self._sum.device)
        given = logits.float().softmax(1).gather(1, labels[:, None]).squeeze(1).double()
        self._sum[index] += given
        self._squares[index] += given.square()
        self._met[index] += 1

    def confidence(self) -> Tensor:
        """μ [N]; infinite for an example that was never met."""
        return torch.where(self._met > 0, self._sum / self._met.clamp_min(1), torch.inf)

    def variability(self) -> Tensor:
        """σ [N]; 0 for an example that was never met."""
        count = self._met.clamp_min(1)
        return (self._squares / count - (self._sum / count).square()).clamp_min(0).sqrt()

    def outcome(self) -> Outcome:
        """One minus the confidence; −inf for an example that was never met."""
        spread = to_scores(self.variability()[self._met > 0])
        summary = {
            "variability_mean": float(spread.mean()) if len(spread) else 0.0,
            "variability_quartiles": np.quantile(spread, (0.25, 0.5, 0.75)).tolist() if len(spread) else [],
        }
        return Outcome(to_scores(1 - self.confidence()), details=summary)


def data_maps(problem: Problem, tell: Say) -> Outcome:
    """One minus the mean probability of the given label over a plain training."""
    watch = DataMap(len(problem), problem.device)
    train(problem, tell, "data maps", observe=watch.update)
    return watch.outcome()
