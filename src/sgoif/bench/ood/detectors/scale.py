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

from typing import Self

from torch import Tensor

from sgoif.bench.ood.detector import Bank, Detector
from sgoif.bench.ood.detectors.ash import keep_largest, shaping_factor
from sgoif.bench.ood.detectors.energy import energy, logit_scale
from sgoif.errors import SettingError
from sgoif.tasks.shift.network import Network, Seen

PERCENTILE = 85.0
"""q in the authors' configuration and in OpenOOD's."""


class SCALE(Detector):
    """The energy of the logits of features raised by their own factor."""

    name = "scale"
    title = "SCALE"
    paper = (
        "Xu, Chen, Franchi, Yao: Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement. "
        "ICLR 2024"
    )

    def __init__(self, *, percentile: float = PERCENTILE) -> None:
        if not 0 <= percentile < 100:
            raise SettingError(f"percentile = {percentile} must lie in [0, 100): some features must be left")
        self.percentile = percentile
        self._network: Network | None = None

    def fit(self, bank: Bank) -> Self:
        self._network = bank.network
        self._scale = logit_scale(bank)
        return self

    def score(self, seen: Seen) -> Tensor:
        if self._network is None:
            raise SettingError("SCALE has no head to answer with: call fit(bank) before score(seen)")
        factor = shaping_factor(seen.features, keep_largest(seen.features, self.percentile))
        return energy(self._scale * self._network.answer(factor * seen.features))
