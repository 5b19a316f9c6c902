"""Forgetting events: how often an example that the network had right became one that it has wrong.

Mariya Toneva, Alessandro Sordoni, Remi Tachet des Combes, Adam Trischler, Yoshua Bengio, Geoffrey Gordon: "An
Empirical Study of Example Forgetting during Deep Neural Network Learning", ICLR 2019. With c_t = [argmax z_t = y] when
the example is met for the t-th time in a training batch (augmented, before the step),

    events = Σ_t [c_t = 1 and c_{t+1} = 0];      an example that was never right counts as forgotten infinitely often

Suspicion is the number of events alone, as the authors rank; many examples tie, and the metrics treat ties as such. The
infinite count is written as the number of times the example was met, which no count of events can reach. There is no
threshold of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem
from sgoif_bench.labels.rivals.influence_common import to_scores, train


class ForgettingCounter:
    """Counts forgetting events during one training; a batch must not hold an example twice."""

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self._events = torch.zeros(size, dtype=torch.int64, device=device)
        self._met = torch.zeros_like(self._events)
        self._right = torch.zeros(size, dtype=torch.bool, device=device)
        self._learnt = torch.zeros_like(self._right)

    @torch.no_grad()
    def update(self, logits: Tensor, labels: Tensor, index: Tensor) -> None:
        """Take in one batch as the training step saw it."""
        index = index.to(self._met.device)
        right = logits.argmax(1) == labels
        self._events[index] += self._right[index] & ~right
        self._met[index] += 1
        self._right[index] = right
        self._learnt[index] |= right

    def outcome(self) -> Outcome:
        """Events of every example; −inf for one that was never met."""
        seen = self._met > 0
        counts = torch.where(self._learnt, self._events, self._met).double()
        never_learnt, never_forgotten = seen & ~self._learnt, self._learnt & (self._events == 0)
        return Outcome(
            to_scores(torch.where(seen, counts, -torch.inf)),
            details={"never_learnt": int(never_learnt.sum()), "never_forgotten": int(never_forgotten.sum())},
        )


def forgetting(problem: Problem, tell: Say) -> Outcome:
    """Forgetting events over a plain training."""
    counter = ForgettingCounter(len(problem), problem.device)
    train(problem, tell, "forgetting", observe=counter.update)
    return counter.outcome()
