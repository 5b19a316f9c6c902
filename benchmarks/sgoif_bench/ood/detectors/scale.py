"""SCALE: energy after all features of an input have been raised by the factor of ASH-S, and none removed.

Xu, Chen, Franchi, Yao: Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement. ICLR 2024.

With s₁ the sum of an input's D features and s₂ the sum of its k = D − round(D q / 100) largest,

    φ̃     = φ exp(s₁ / s₂)
    score = E(W φ̃ + b),    E(z) = −log Σ_k exp z_k

The authors find s₂ / s₁ smaller for inputs of the training distribution, whose logits are therefore raised more. This
is the paper's post-hoc method, applied to the features in front of the head, without its training method ISH. It uses
no statistics of the training data.

Negative features are treated as in ASH: the sums run over positive ones only, and the factor is applied to all.
"""

from __future__ import annotations

from torch import Tensor

from sgoif_bench.ood.detectors.ash import Shaping, shaping_factor

PERCENTILE = 85.0
"""q in the authors' configuration and in OpenOOD's."""


class SCALE(Shaping):
    """The energy of the logits of features raised by their own factor."""

    name = "scale"
    title = "SCALE"
    paper = (
        "Xu, Chen, Franchi, Yao: Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement. "
        "ICLR 2024"
    )
    percentile = PERCENTILE

    def shaped(self, features: Tensor, pruned: Tensor) -> Tensor:
        return shaping_factor(features, pruned) * features
