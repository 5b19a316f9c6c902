"""Relative Mahalanobis distance: to the nearest class, less the distance to the training data as a whole.

Ren, Fort, Liu, Roy, Padhy, Lakshminarayanan: A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection.
ICML Workshop on Uncertainty and Robustness in Deep Learning 2021.

With class means μ_c and their shared covariance Σ, as for the Mahalanobis distance, and mean μ_0 and covariance Σ_0 of
all training features without regard to class,

    M_c(φ) = (φ − μ_c)ᵀ Σ⁻¹ (φ − μ_c)        M_0(φ) = (φ − μ_0)ᵀ Σ_0⁻¹ (φ − μ_0)
    score  = min_c M_c(φ) − M_0(φ)

Directions in which all classes look alike are in both terms and cancel. There is nothing to set.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from sgoif.tasks.ood.network import Seen
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.mahalanobis import TiedGaussians


class RelativeMahalanobis(Detector):
    """Squared distance to the nearest class less squared distance to the background."""

    name = "relative-mahalanobis"
    title = "Relative Mahalanobis"
    paper = (
        "Ren, Fort, Liu, Roy, Padhy, Lakshminarayanan: A Simple Fix to Mahalanobis Distance for Improving Near-OOD"
        " Detection. ICML workshop 2021"
    )

    def fit(self, bank: Bank) -> Self:
        self._classes = TiedGaussians(bank.features, bank.labels)
        self._background = TiedGaussians(bank.features, torch.zeros_like(bank.labels))
        return self

    def score(self, seen: Seen) -> Tensor:
        nearest = self._classes.distances(seen.features).amin(dim=1)
        return (nearest - self._background.distances(seen.features).squeeze(1)).float()
