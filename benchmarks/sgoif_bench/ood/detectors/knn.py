"""Deep nearest neighbours: how far away the k-th nearest training example is.

Sun, Ming, Zhu, Li: Out-of-Distribution Detection with Deep Nearest Neighbors. ICML 2022.

For features φ of an input and φ_i of a share α of the training data, chosen at random,

    score = ‖φ/‖φ‖ − φ_(k)/‖φ_(k)‖‖,    φ_(k) the k-th nearest of them

The authors use k = 50 on CIFAR-10 with all data, and so does OpenOOD v1.5 on CIFAR-10 and CIFAR-100 alike. (Their own k
on CIFAR-100, 200, was chosen on validation data, as was 1000 on ImageNet with α = 1, 10 with α = 1%.) A bank with fewer
than k examples gives its farthest.
"""

from __future__ import annotations

from typing import Self

from torch import Tensor

from sgoif.tasks.ood.network import Seen
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.neighbours import Neighbours, check_part, part_of


class KNN(Detector):
    """Distance to the k-th nearest training example on the unit sphere."""

    name = "knn"
    title = "KNN"
    paper = "Sun, Ming, Zhu, Li: Out-of-Distribution Detection with Deep Nearest Neighbors. ICML 2022"

    def __init__(self, *, k: int = 50, share: float = 1.0, seed: int = 0) -> None:
        check_part(k, share)
        self.k, self.share, self.seed = k, share, seed

    def fit(self, bank: Bank) -> Self:
        self._bank = Neighbours(bank.features[part_of(bank, self.share, self.seed)], "cosine")
        return self

    def score(self, seen: Seen) -> Tensor:
        return self._bank.nearest(seen.features, min(self.k, len(self._bank))).values[:, -1]
