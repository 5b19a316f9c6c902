"""The simple rivals: what the training batches themselves say about a label, averaged over the run.

For logits z, probabilities p = softmax(z) and given label y, each observation of an example adds

    loss          −log p_y
    margin         z_y − max_{k≠y} z_k     (its mean over training is the AUM, area under the margin)
    prob_margin    p_y − max_{k≠y} p_k

Suspicion is the mean loss, or minus the mean margin.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

SIGNALS = ("loss", "margin", "prob_margin")


class SignalTracker:
    """Running means of the three signals for every example of a data set."""

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self._sums = torch.zeros(len(SIGNALS), size, dtype=torch.float64, device=device)
        self._counts = torch.zeros(size, dtype=torch.float64, device=device)

    @torch.no_grad()
    def update(self, logits: Tensor, labels: Tensor, index: Tensor) -> None:
        """Take in one batch as the training step saw it."""
        z = logits.detach().float()
        index = index.to(self._counts.device)
        values = torch.stack(
            [F.cross_entropy(z, labels, reduction="none"), _margin(z, labels), _margin(z.softmax(1), labels)]
        )
        self._sums.index_add_(1, index, values.to(self._sums))
        self._counts.index_add_(0, index, torch.ones_like(index, dtype=torch.float64))

    def suspicion(self) -> dict[str, NDArray[np.float64]]:
        """Higher = more suspicious, for every example; −inf for one that was never seen."""
        mean = (self._sums / self._counts.clamp_min(1)).cpu().numpy()
        unseen = (self._counts == 0).cpu().numpy()
        signed = {"loss": mean[0], "margin": -mean[1], "prob_margin": -mean[2]}
        return {name: np.where(unseen, -np.inf, values) for name, values in signed.items()}


def _margin(values: Tensor, labels: Tensor) -> Tensor:
    given = values.gather(1, labels[:, None]).squeeze(1)
    others = values.scatter(1, labels[:, None], -torch.inf)
    return given - others.amax(dim=1)
