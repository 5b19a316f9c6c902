"""Mahalanobis distance to the nearest class, one covariance for all classes.

Lee, Lee, Lee, Shin: A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks.
NeurIPS 2018.

For features φ with labels y, class means μ_c and Σ = mean of (φ − μ_y)(φ − μ_y)ᵀ over the training data,

    M(φ)  = min_c (φ − μ_c)ᵀ Σ⁻¹ (φ − μ_c)
    score = M(φ)

This is the form that OpenOOD v1.5 calls MDS: features before the head, the input not perturbed. With `stages` it is the
authors' ensemble over depths,

    score = Σ_l α_l M_l(h_l)

over the stages, averaged over their positions, and the features. The authors learn the weights α_l by logistic
regression on outliers for validation (or on adversarial examples); there are none here, so all are 1.

Σ⁻¹ is the pseudo-inverse of OpenOOD's estimator (scikit-learn's): directions whose eigenvalue is below D ε of the
largest, ε = 2⁻⁵² and D the number of features, do not count at all, so that a feature that never varied in training
adds nothing to a distance. Classes without training data have no mean and are left out.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from sgoif.tasks.ood.network import Seen
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.neighbours import layers

PRECISION = float(torch.finfo(torch.float64).eps)
"""Times the number of features, the share of the largest eigenvalue from which on a direction counts."""
CHUNK = 8192
"""Examples that are in double precision at a time."""


class TiedGaussians:
    """One Gaussian for each group of examples, all with the same covariance."""

    def __init__(self, vectors: Tensor, groups: Tensor) -> None:
        present, group = groups.unique(return_inverse=True)
        wide = vectors.shape[1]
        sums = torch.zeros(len(present), wide, dtype=torch.float64, device=vectors.device)
        for part, of in zip(vectors.split(CHUNK), group.split(CHUNK), strict=True):
            sums.index_add_(0, of, part.double())
        self.means = sums / group.bincount(minlength=len(present)).unsqueeze(1)
        covariance = torch.zeros(wide, wide, dtype=torch.float64, device=vectors.device)
        for part, of in zip(vectors.split(CHUNK), group.split(CHUNK), strict=True):
            centred = part.double() - self.means[of]
            covariance.addmm_(centred.T, centred)
        covariance /= len(vectors)
        values, directions = torch.linalg.eigh(covariance)
        counts = values > wide * PRECISION * values.amax()
        self._whitening = directions[:, counts] * values[counts].rsqrt()
        self._white_means = self.means @ self._whitening

    def distances(self, vectors: Tensor) -> Tensor:
        """Squared Mahalanobis distances [n, groups], float64."""
        return torch.cdist(vectors.double() @ self._whitening, self._white_means).square()


class Mahalanobis(Detector):
    """Distance to the nearest class mean in the metric of the shared covariance."""

    name = "mahalanobis"
    title = "Mahalanobis"
    paper = (
        "Lee, Lee, Lee, Shin: A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial"
        " Attacks. NeurIPS 2018"
    )

    def __init__(self, *, stages: bool = False) -> None:
        self.stages = stages

    def fit(self, bank: Bank) -> Self:
        of_bank = layers(bank.pooled, bank.features) if self.stages else (bank.features,)
        self._gaussians = [TiedGaussians(vectors, bank.labels) for vectors in of_bank]
        return self

    def score(self, seen: Seen) -> Tensor:
        # The same layers as in `fit`, where the whole bank decided whether the last stage is the features once more.
        of_batch = (*seen.pooled[: len(self._gaussians) - 1], seen.features)
        terms = [each.distances(vectors).amin(dim=1) for each, vectors in zip(self._gaussians, of_batch, strict=True)]
        return torch.stack(terms).sum(dim=0).float()
