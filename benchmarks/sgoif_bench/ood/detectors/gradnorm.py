"""GradNorm: how strongly the head's weights would be pulled towards answering "all classes alike".

Huang, Geng, Li: On the Importance of Gradients for Detecting Distributional Shifts in the Wild. NeurIPS 2021.

For u the uniform distribution over the classes and p = softmax(z / T), z = W φ + b,

    ∂ KL(u ‖ p) / ∂W = (p − u) φᵀ / T
    score = −‖∂ KL(u ‖ p) / ∂W‖₁ = −‖p − u‖₁ ‖φ‖₁ / T

The paper's main variant: weights of the last layer only, L1 norm. Its gradient has rank one, so no backward pass is
made. Where a network multiplies its head's answers by a constant, the norm is multiplied by the same constant for all
inputs, and this is left out.
"""

from __future__ import annotations

from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Seen
from sgoif_bench.ood.detector import Detector

TEMPERATURE = 1.0
"""Of the paper and of the authors' code."""


class GradNorm(Detector):
    """The negative L1 norm of the gradient in the head's weights. There is nothing to fit."""

    name = "gradnorm"
    title = "GradNorm"
    paper = (
        "Huang, Geng, Li: On the Importance of Gradients for Detecting Distributional Shifts in the Wild. NeurIPS 2021"
    )

    def __init__(self, *, temperature: float = TEMPERATURE) -> None:
        if not 0 < temperature < float("inf"):
            raise SettingError(f"temperature = {temperature} must be a positive number")
        self.temperature = temperature

    def score(self, seen: Seen) -> Tensor:
        probabilities = (seen.logits / self.temperature).softmax(dim=1)
        pull = (probabilities - 1 / probabilities.shape[1]).abs().sum(dim=1)
        return -pull * seen.features.abs().sum(dim=1) / self.temperature
