"""Maximum softmax probability: an input belongs as far as the network is certain of one class.

Hendrycks, Gimpel: A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural Networks. ICLR
2017.

    score = 1 − max_k p_k,    p = softmax(z)

It is computed as Σ_{k ≠ argmax} p_k, the same number without the cancellation: where the network is certain, 1 − max p
in float32 is 0 for all and says no more which input is the less certain one.
"""

from __future__ import annotations

from torch import Tensor

from sgoif.tasks.ood.network import Seen
from sgoif_bench.ood.detector import Detector


class MSP(Detector):
    """One minus the largest softmax probability. It has nothing to fit and no settings."""

    name = "msp"
    title = "MSP"
    paper = (
        "Hendrycks, Gimpel: A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural "
        "Networks. ICLR 2017"
    )

    def score(self, seen: Seen) -> Tensor:
        probabilities = seen.logits.softmax(dim=1)
        top = probabilities.argmax(dim=1, keepdim=True)
        return probabilities.scatter(1, top, 0.0).sum(dim=1)
