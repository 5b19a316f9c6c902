"""ASH-S: energy after most features of an input have been removed and the others raised by what was lost.

Djurisic, Bozanic, Ashok, Liu: Extremely Simple Activation Shaping for Out-of-Distribution Detection. ICLR 2023.

Of the D features of an input, the k = D − round(D q / 100) largest are kept. With s₁ the sum of all of them and s₂ the
sum of the kept ones,

    φ̃_d   = φ_d exp(s₁ / s₂) if kept, else 0
    score = E(W φ̃ + b),    E(z) = −log Σ_k exp z_k

Of the paper's three variants this is ASH-S, which the authors' configurations for CIFAR and ImageNet name, applied
where they apply it: to the features after the last pooling, in front of the head. (OpenOOD's default is ASH-B.) It uses
no statistics of the training data.

The paper's features come out of a ReLU, where s₁ / s₂ lies between 1 and D / k. With negative ones, s₂ may be near zero
or of another sign than s₁, so both sums are taken over positive features only; this changes nothing where there are no
others and keeps the range. An input without any positive feature has the exponent 1. At least one feature is kept.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.energy import energy, head_answer, logit_scale

PERCENTILE = 90.0
"""q in the authors' configurations of ASH-S for CIFAR-10 and ImageNet, and in OpenOOD's. For CIFAR-100 the authors have
had both 90 and 95."""


def keep_largest(features: Tensor, percentile: float) -> Tensor:
    """Features with all but the largest of every row set to zero; `percentile` of 100 go, but never all."""
    width = features.shape[1]
    kept = max(1, width - round(width * percentile / 100))
    largest = features.topk(kept, dim=1)
    return torch.zeros_like(features).scatter(1, largest.indices, largest.values)


def shaping_factor(features: Tensor, pruned: Tensor) -> Tensor:
    """exp(s₁ / s₂) for every row, [n, 1]."""
    everything = features.clamp_min(0).sum(dim=1, keepdim=True)
    kept = pruned.clamp_min(0).sum(dim=1, keepdim=True)
    return torch.where(kept > 0, everything / kept, 1.0).exp()


class Shaping(Detector):
    """The energy of the logits of features that were changed by what share of them is large."""

    percentile: ClassVar[float]

    def __init__(self, *, percentile: float | None = None) -> None:
        given = self.percentile if percentile is None else percentile
        if not 0 <= given < 100:
            raise SettingError(f"percentile = {given} must lie in [0, 100): some features must be left")
        self._percentile = given
        self._network: Network | None = None

    def fit(self, bank: Bank) -> Self:
        self._network = bank.network
        self._scale = logit_scale(bank)
        return self

    def score(self, seen: Seen) -> Tensor:
        if self._network is None:
            raise SettingError(f"{self.title} has no head to answer with: call fit(bank) before score(seen)")
        shaped = self.shaped(seen.features, keep_largest(seen.features, self._percentile))
        return energy(self._scale * head_answer(self._network, shaped))

    @abstractmethod
    def shaped(self, features: Tensor, pruned: Tensor) -> Tensor:
        """The features that the head answers, from those that came and those that are left of them."""


class ASH(Shaping):
    """The energy of the logits of pruned and sharpened features."""

    name = "ash"
    title = "ASH-S"
    paper = (
        "Djurisic, Bozanic, Ashok, Liu: Extremely Simple Activation Shaping for Out-of-Distribution Detection. "
        "ICLR 2023"
    )
    percentile = PERCENTILE

    def shaped(self, features: Tensor, pruned: Tensor) -> Tensor:
        return pruned * shaping_factor(features, pruned)
