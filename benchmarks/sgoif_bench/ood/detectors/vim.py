"""Virtual-logit matching: a logit of its own for what the features have outside their principal space.

Wang, Li, Feng, Zhang: ViM: Out-of-Distribution with Virtual-logit Matching. CVPR 2022.

For features φ, a head z = W φ + b and P the D′ main eigenvectors of the mean of (φ − o)(φ − o)ᵀ over the training data,

    o        = −W⁺ b                              the point at which all logits are zero, or nearest to it
    residual = ‖(φ − o) − P Pᵀ (φ − o)‖
    α        = Σ max z / Σ residual               over the training data
    score    = α residual − logsumexp z

The paper's score, the probability of the virtual logit α residual beside the others, grows with this difference. D′ is
the authors' choice: 1000 of 2048 features and more, 512 of 768 and more, else half of them, which for the 512 of a
ResNet-18 is also OpenOOD's 256.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.ood.detector import Bank, Detector

SMALLEST_RESIDUAL = 1e-6
"""Of the length of φ − o. Features that never leave the principal space have a residual of rounding errors only, and
those must not be scaled up to logits."""
CHUNK = 8192
"""Examples that are in double precision at a time."""


def principal_dimension(features: int) -> int:
    """D′ for so many features."""
    if features >= 2048:
        return 1000
    return 512 if features >= 768 else features // 2


def origin(network: Network) -> Tensor:
    """o, float64 [D]."""
    weight = network.head.weight.detach().double()
    bias: Tensor | None = network.head.bias
    if bias is None:
        return weight.new_zeros(weight.shape[1])
    zero: Tensor = -(torch.linalg.pinv(weight) @ bias.detach().double())
    return zero


class ViM(Detector):
    """Scaled residual less the energy."""

    name = "vim"
    title = "ViM"
    paper = "Wang, Li, Feng, Zhang: ViM: Out-of-Distribution with Virtual-logit Matching. CVPR 2022"

    def __init__(self, *, dimension: int | None = None) -> None:
        if dimension is not None and dimension < 0:
            raise SettingError(f"dimension = {dimension}: the principal space has no dimension, or more")
        self.dimension = dimension

    def fit(self, bank: Bank) -> Self:
        wide = bank.features.shape[1]
        dimension = principal_dimension(wide) if self.dimension is None else self.dimension
        if dimension >= wide:
            raise SettingError(
                f"dimension = {dimension}: nothing is left outside a principal space of that dimension, the network has"
                f" {wide} features; take {principal_dimension(wide)}, or None"
            )
        self._origin = origin(bank.network)
        moment = torch.zeros(wide, wide, dtype=torch.float64, device=bank.features.device)
        length = residual = 0.0
        for part in bank.features.split(CHUNK):
            shifted = part.double() - self._origin
            moment.addmm_(shifted.T, shifted)
            length += float(shifted.norm(dim=1).sum())
        # Eigenvalues come in rising order.
        self._outside = torch.linalg.eigh(moment / len(bank)).eigenvectors[:, : wide - dimension]
        for part in bank.features.split(CHUNK):
            residual += float(self.residual(part).sum())
        self.alpha = float(bank.logits.amax(dim=1).double().sum()) / max(residual, SMALLEST_RESIDUAL * length, 1e-12)
        return self

    def residual(self, features: Tensor) -> Tensor:
        """Length of what lies outside the principal space, [n] float64."""
        length: Tensor = ((features.double() - self._origin) @ self._outside).norm(dim=1)
        return length

    def score(self, seen: Seen) -> Tensor:
        return (self.alpha * self.residual(seen.features)).float() - seen.logits.logsumexp(dim=1)
