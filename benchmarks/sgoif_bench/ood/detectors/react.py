"""ReAct: energy after the features have been cut off where those of the training data end.

Sun, Guo, Li: ReAct: Out-of-distribution Detection With Rectified Activations. NeurIPS 2021.

    c     = percentile q of all entries of all training features
    score = E(W min(φ, c) + b),    E(z) = −log Σ_k exp z_k

Unfamiliar inputs tend to have a few very large features, which make the network sure of itself for no good reason.

Only the upper end is cut: negative features, which ReLU networks do not have, pass as they are. Where more than the
share q of all training entries is zero, c is zero and every input scores the same; a larger q is the way out.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.energy import energy, head_answer, logit_scale

PERCENTILE = 90.0
"""q of the paper and of OpenOOD's configuration."""


class ReAct(Detector):
    """The energy of the logits of clipped features."""

    name = "react"
    title = "ReAct"
    paper = "Sun, Guo, Li: ReAct: Out-of-distribution Detection With Rectified Activations. NeurIPS 2021"

    def __init__(self, *, percentile: float = PERCENTILE) -> None:
        if not 0 < percentile <= 100:
            raise SettingError(f"percentile = {percentile} must lie above 0 and be at most 100")
        self.percentile = percentile
        self.threshold = float("inf")
        """c"""
        self._network: Network | None = None

    def fit(self, bank: Bank) -> Self:
        # NumPy, because torch.quantile refuses more than 16 million entries.
        self.threshold = float(np.percentile(bank.features.cpu().numpy(), self.percentile))
        self._network = bank.network
        self._scale = logit_scale(bank)
        return self

    def score(self, seen: Seen) -> Tensor:
        if self._network is None:
            raise SettingError("ReAct does not know where to clip: call fit(bank) before score(seen)")
        clipped = seen.features.clamp_max(self.threshold)
        return energy(self._scale * head_answer(self._network, clipped))
