"""Energy-based detection: the free energy of the logits, low where the network has seen much.

Liu, Wang, Owens, Li: Energy-based Out-of-distribution Detection. NeurIPS 2020.

    score = E(z; T) = −T log Σ_k exp(z_k / T)

This is the paper's score for a network trained as usual, without the fine-tuning on outliers that it also proposes.
"""

from __future__ import annotations

from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Seen
from sgoif_bench.ood.detector import Detector
from sgoif_bench.ood.detectors.energy import energy

TEMPERATURE = 1.0
"""Of the paper, where it is said to need no tuning, and of OpenOOD's configuration."""


class EBO(Detector):
    """The energy of the logits at a temperature. There is nothing to fit."""

    name = "ebo"
    title = "Energy"
    paper = "Liu, Wang, Owens, Li: Energy-based Out-of-distribution Detection. NeurIPS 2020"

    def __init__(self, *, temperature: float = TEMPERATURE) -> None:
        if not 0 < temperature < float("inf"):
            raise SettingError(f"temperature = {temperature} must be a positive number")
        self.temperature = temperature

    def score(self, seen: Seen) -> Tensor:
        return energy(seen.logits, self.temperature)
