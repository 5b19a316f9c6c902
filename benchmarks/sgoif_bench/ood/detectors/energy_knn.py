"""Energy and nearest neighbours at every depth, in one score.

A baseline of this benchmark, not of a paper. It joins two signals that are known to complement each other: the energy
of Liu, Wang, Owens, Li (Energy-based Out-of-distribution Detection, NeurIPS 2020) and the distance to the k-th nearest
training example of Sun et al. (ICML 2022), the latter taken at every depth of the network. With layers h_l, the stages
averaged over their positions and the features φ before the head,

    E(x)   = −logsumexp z(x)
    d_l(x) = ‖h_l/‖h_l‖ − h_l(k)/‖h_l(k)‖‖,    h_l(k) the k-th nearest of the training data
    score  = (E − mean E)/spread E + mean over l of (d_l − mean d_l)/spread d_l

Means and standard deviations are those of a tenth of the training data, held out of the search: an example would be its
own neighbour otherwise. A last stage whose average is the features themselves counts once. k = 50, as for KNN.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Seen
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.neighbours import Neighbours, held_out, layers

SMALLEST_SPREAD = 1e-6
"""Below this a term is taken to be constant on the training data up to rounding."""


class EnergyKNN(Detector):
    """Standardised energy plus the mean standardised distance to the k-th neighbour over all depths."""

    name = "energy-knn"
    title = "Energy + multi-layer KNN"
    paper = "a baseline of this benchmark, after Liu et al. (NeurIPS 2020) and Sun et al. (ICML 2022)"

    def __init__(self, *, k: int = 50, held_out_share: float = 0.1, seed: int = 0) -> None:
        if k < 1:
            raise SettingError(f"k = {k}: at least one neighbour is needed")
        if not 0 < held_out_share < 1:
            raise SettingError(f"held_out_share = {held_out_share}: must lie between 0 and 1, both excluded")
        self.k, self.held_out_share, self.seed = k, held_out_share, seed

    def fit(self, bank: Bank) -> Self:
        held = held_out(len(bank), self.held_out_share, self.seed).to(bank.features.device)
        of_bank = layers(bank.pooled, bank.features)
        self._banks = [Neighbours(layer[~held], "cosine") for layer in of_bank]
        terms = self._terms(bank.logits[held], [layer[held] for layer in of_bank])
        self._mean = terms.mean(dim=1, keepdim=True)
        self._spread = terms.std(dim=1, keepdim=True, correction=0).clamp_min(SMALLEST_SPREAD)
        return self

    def score(self, seen: Seen) -> Tensor:
        terms = self._terms(seen.logits, [*seen.pooled[: len(self._banks) - 1], seen.features])
        standardised = (terms - self._mean) / self._spread
        return standardised[0] + standardised[1:].mean(dim=0)

    def _terms(self, logits: Tensor, of_batch: list[Tensor]) -> Tensor:
        """Energy and the distance at every depth, [1 + layers, n]."""
        k = min(self.k, len(self._banks[0]))
        distances = [bank.nearest(layer, k).values[:, -1] for bank, layer in zip(self._banks, of_batch, strict=True)]
        return torch.stack([-logits.logsumexp(dim=1), *distances])
