"""The sentinel among the detectors, with and without its gate.

    s(x) = ½ ln κ(x) + ½ ln ν(x) − g ln E(x)

`tasks.ood.sentinel` explains it. Here it is fitted on the training data as the network sees them, like every other
post-hoc detector, and shares the forward pass.
"""

from __future__ import annotations

from typing import ClassVar, Self

from torch import Tensor

from sgoif.tasks.ood.network import Seen
from sgoif.tasks.ood.sentinel import Sentinel
from sgoif_bench.ood.detector import Bank, Detector


class SentinelDetector(Detector):
    """Energy, gated by how far the labels are believed, over curvature-normalised spread and nearest neighbour."""

    name: ClassVar[str] = "sentinel"
    title: ClassVar[str] = "SG-OIF sentinel"
    paper: ClassVar[str] = "SG-OIF: A Stability-Guided Online Influence Framework for Reliable Vision Data"
    gate: ClassVar[bool] = True

    def fit(self, bank: Bank) -> Self:
        self.sentinel = Sentinel.fit_outputs(bank.network, bank.batches(), gate=self.gate)
        return self

    def score(self, seen: Seen) -> Tensor:
        return self.sentinel.strangeness(seen)


class UngatedSentinel(SentinelDetector):
    """The same with every label believed: g = 1."""

    name: ClassVar[str] = "sentinel-ungated"
    title: ClassVar[str] = "SG-OIF sentinel, no gate"
    gate: ClassVar[bool] = False
