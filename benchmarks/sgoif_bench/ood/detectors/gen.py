"""GEN: a generalised entropy of the softmax probabilities, which feels small departures from certainty.

Liu, Lochman, Zach: GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection. CVPR 2023.

Over the M largest probabilities p_(1) ≥ … ≥ p_(M), all of them where there are fewer classes,

    score = G_γ(p) = Σ_{m ≤ M} p_(m)^γ (1 − p_(m))^γ

1 − p_(1) is computed as the sum of all other probabilities: with γ = 0.1 an error of 10⁻⁷ there is one of 0.2 in the
score.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Seen
from sgoif_bench.ood.detector import Detector

GAMMA = 0.1
"""γ of the paper and of OpenOOD's configuration."""
TOP = 100
"""M of the paper, for the thousand classes of ImageNet, and of OpenOOD's configuration."""


class GEN(Detector):
    """The generalised entropy of the largest softmax probabilities. There is nothing to fit."""

    name = "gen"
    title = "GEN"
    paper = "Liu, Lochman, Zach: GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection. CVPR 2023"

    def __init__(self, *, gamma: float = GAMMA, top: int = TOP) -> None:
        if not 0 < gamma < float("inf"):
            raise SettingError(f"gamma = {gamma} must be a positive number; the paper's entropies have it below 1")
        if top < 1:
            raise SettingError(f"top = {top} must be at least 1, the number of classes that are looked at")
        self.gamma = gamma
        self.top = top

    def score(self, seen: Seen) -> Tensor:
        falling = seen.logits.softmax(dim=1).sort(dim=1, descending=True).values
        others = torch.cat([falling[:, 1:].sum(dim=1, keepdim=True), 1 - falling[:, 1:]], dim=1)
        return (falling.pow(self.gamma) * others.pow(self.gamma))[:, : self.top].sum(dim=1)
