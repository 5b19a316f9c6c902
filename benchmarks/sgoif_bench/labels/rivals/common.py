"""What several rivals share: per-example means on the device, random streams of their own, losses of a trained network.

Random numbers. Every rival draws from streams keyed by (seed of the problem, number of the stream). Using the bare seed
would be a leak: whoever planted the noise may have drawn from that very stream.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem, Rows, Scores

LATE_SHARE = 0.25
"""Share of the epochs, at the end of training, over which a rival averages what it sees."""


def is_late(epoch: int, epochs: int) -> bool:
    """Whether this epoch (from 1) belongs to the last quarter of training; the last one always does."""
    return epoch > min((1 - LATE_SHARE) * epochs, epochs - 1)


def numpy_stream(problem: Problem, number: int) -> np.random.Generator:
    """Random numbers of a rival's own, on the CPU."""
    return np.random.default_rng([problem.seed, number])


def torch_stream(problem: Problem, number: int) -> torch.Generator:
    """Random numbers of a rival's own, on the problem's device."""
    seed = int(numpy_stream(problem, number).integers(2**62))
    return torch.Generator(device=problem.device).manual_seed(seed)


class MeanPerExample:
    """Running means of a value that is seen for some examples at a time; kept on the device."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._sums = torch.zeros(size, dtype=torch.float64, device=device)
        self._counts = torch.zeros(size, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, index: Tensor, values: Tensor) -> None:
        """Take in one value for each of these examples."""
        where = index.to(self._sums.device)
        self._sums.index_add_(0, where, values.detach().to(self._sums))
        self._counts.index_add_(0, where, torch.ones_like(where, dtype=torch.float64))

    def result(self) -> Scores:
        """The mean for every example; 0 for one that was never seen."""
        mean: Scores = (self._sums / self._counts.clamp_min(1)).cpu().numpy()
        return mean


def example_losses(problem: Problem, model: nn.Module, rows: Rows | None = None) -> Tensor:
    """Cross entropy −log p_y of these rows (by default all) in evaluation mode, float32 on the device."""
    return label_losses(problem, problem.predict(model, rows), rows)


def label_losses(problem: Problem, logits: Tensor, rows: Rows | None = None) -> Tensor:
    """Cross entropy of these rows' logits with their given labels."""
    labels = torch.from_numpy(problem.labels if rows is None else problem.labels[rows]).to(logits.device)
    return F.cross_entropy(logits, labels, reduction="none")


class LateLosses:
    """The mean over the last quarter of the epochs of every example's cross entropy in evaluation mode.

    The score of a network that was trained to withstand wrong labels: what it still does not believe at the end.
    """

    def __init__(self, problem: Problem, tell: Say, name: str) -> None:
        self._problem, self._tell, self._name = problem, tell, name
        self._mean = MeanPerExample(len(problem), problem.device)
        self._everything = torch.arange(len(problem), device=problem.device)

    def end_of_epoch(self, model: nn.Module, epoch: int) -> None:
        """Tell about the epoch (from 1) and, if it is a late one, look at all examples."""
        epochs = self._problem.recipe.epochs
        self._tell(f"{self._name}: epoch {epoch} of {epochs}")
        if is_late(epoch, epochs):
            self._mean.add(self._everything, example_losses(self._problem, model))

    def result(self) -> Scores:
        """Suspicion of every example."""
        return self._mean.result()
