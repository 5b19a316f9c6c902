"""DICE: energy with those weights of the head only that carry most on the training data.

Sun, Li: DICE: Leveraging Sparsification for Out-of-Distribution Detection. ECCV 2022.

    V_kd  = W_kd · mean_i φ_id                       what feature d contributes to class k on average
    M_kd  = 1 where V_kd > percentile q of all V, else 0
    score = E((M ⊙ W) φ + b),    E(z) = −log Σ_k exp z_k

One threshold for the whole matrix, as the authors have it, so that classes may keep different numbers of weights. V has
a sign: with negative features a weight counts by what it contributes, not by its size. The bias is kept whole; a head
without one has none to keep.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Seen
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.energy import energy, logit_scale

PERCENTILE = 90.0
"""q, the sparsity p of the paper, for CIFAR in the authors' code and in OpenOOD's configuration."""


class DICE(Detector):
    """The energy of the logits of a sparse head."""

    name = "dice"
    title = "DICE"
    paper = "Sun, Li: DICE: Leveraging Sparsification for Out-of-Distribution Detection. ECCV 2022"

    def __init__(self, *, percentile: float = PERCENTILE) -> None:
        if not 0 <= percentile < 100:
            raise SettingError(f"percentile = {percentile} must lie in [0, 100): some weights must be left")
        self.percentile = percentile
        self.weight: Tensor | None = None
        """M ⊙ W, [classes, D]"""

    def fit(self, bank: Bank) -> Self:
        head = bank.network.head
        weight = head.weight.detach().float()
        contribution = weight * bank.features.mean(dim=0)
        threshold = float(np.percentile(contribution.cpu().numpy(), self.percentile))
        self.weight = weight * (contribution > threshold)
        self._bias = None if head.bias is None else head.bias.detach().float().clone()
        self._scale = logit_scale(bank)
        return self

    def score(self, seen: Seen) -> Tensor:
        if self.weight is None:
            raise SettingError("DICE does not know which weights to keep: call fit(bank) before score(seen)")
        return energy(self._scale * F.linear(seen.features, self.weight, self._bias))
