"""Nearest-neighbour guidance: the energy of an input, weighed by how alike it is to training data of high energy.

Park, Jung, Teoh: Nearest Neighbor Guidance for Out-of-Distribution Detection. ICCV 2023.

With S(x) = logsumexp z(x), of features φ on the unit sphere, and a share α of the training data as the bank,

    G(x)  = mean of the k largest  S(x_i) φ_i·φ  over the bank
    score = −S(x) G(x)

k = 10 is the authors' setting in their code. There α = 1% of ImageNet, which is 12,811 images, to save memory; the bank
here is all training data, which on the smaller sets is what comes nearest to theirs. (OpenOOD's configuration has
k = 100 and α = 1%, of CIFAR-10 500 images.) A bank with fewer than k examples is averaged as a whole.
"""

from __future__ import annotations

from typing import Self

from torch import Tensor

from sgoif.tasks.ood.network import Seen
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.neighbours import check_part, largest_products, part_of, unit


class NNGuide(Detector):
    """Energy times the similarity to the nearest energy-scaled training features, negated."""

    name = "nnguide"
    title = "NNGuide"
    paper = "Park, Jung, Teoh: Nearest Neighbor Guidance for Out-of-Distribution Detection. ICCV 2023"

    def __init__(self, *, k: int = 10, share: float = 1.0, seed: int = 0) -> None:
        check_part(k, share)
        self.k, self.share, self.seed = k, share, seed

    def fit(self, bank: Bank) -> Self:
        part = part_of(bank, self.share, self.seed)
        self._bank = unit(bank.features[part]) * bank.logits[part].logsumexp(dim=1, keepdim=True)
        return self

    def score(self, seen: Seen) -> Tensor:
        guidance = largest_products(unit(seen.features), self._bank, min(self.k, len(self._bank))).values.mean(dim=1)
        return -guidance * seen.logits.logsumexp(dim=1)
