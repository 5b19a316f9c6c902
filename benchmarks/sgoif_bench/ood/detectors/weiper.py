"""WeiPer+KLD: how far the histogram of an input's features, and of its answers to a shaken head, is from the usual one.

Granz, Heurich, Landgraf: WeiPer: OOD Detection using Weight Perturbations of Class Projections. NeurIPS 2024.

For a head z = W φ + b with rows w_k and r draws of unit vectors ε of random direction,

    w̃_k = w_k + δ ‖w_k‖ ε        the bias stays:    z̃ = W̃ φ + b, r logits for every class
    h(x) = histogram of the D features of x,   h̃(x) = histogram of its r K perturbed logits
    D(h) = Σ_b (p_b − q_b)(log p_b − log q_b)    p ∝ mean of h over training + ε,   q ∝ smooth(h(x)) + ε
    score = D(h) + λ₁ D(h̃) − λ₂ MSP_W,          MSP_W = mean over draws of max_k softmax(z̃)_k

D is the divergence both ways. The bins divide the range between the smallest and the largest value of any training
example; what lies outside is left out. `smooth` is a running mean over s₁ or s₂ bins, the outermost repeated, applied
to the input's histogram alone. As in the authors' code, ε is 0.01 for the features and 0.025 for the logits.

δ, λ₁, λ₂, s₁, s₂ and the number of bins are those that the authors publish with their code, r = 100, for ResNet-18 on
CIFAR-10 and CIFAR-100 and ResNet-50 on ImageNet. They found them with outliers for validation, as OpenOOD does; there
are none here and nothing is searched. Sets of other sizes take those of the authors' largest set with no more classes.
What a network does to the answers of its head is done to the perturbed ones (`energy.logit_scale`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Seen
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.energy import logit_scale
from sgoif_bench.ood.detectors.published import of_classes

FEATURE_FLOOR, LOGIT_FLOOR = 0.01, 0.025
"""ε of the two histograms."""
CHUNK_BYTES = 2**26
"""Perturbed logits that exist at once."""


@dataclass(frozen=True, kw_only=True)
class Perturbation:
    """Numbers of the method, named as in the paper."""

    distance: float
    """δ"""
    logits_weight: float
    """λ₁"""
    confidence_weight: float
    """λ₂"""
    feature_smoothing: int = 4
    """s₁"""
    logit_smoothing: int
    """s₂"""
    bins: int = 100
    repeats: int = 100
    """r"""

    def __post_init__(self) -> None:
        for name in ("distance", "logits_weight", "confidence_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingError(f"{name} = {getattr(self, name)} of WeiPer must be 0 or more")
        for name in ("feature_smoothing", "logit_smoothing", "bins", "repeats"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} = {getattr(self, name)} of WeiPer must be at least 1")


PUBLISHED: dict[int, Perturbation] = {
    10: Perturbation(distance=1.8, logits_weight=2.5, confidence_weight=0.1, logit_smoothing=15),
    100: Perturbation(distance=2.4, logits_weight=0.1, confidence_weight=1.0, logit_smoothing=40),
    1000: Perturbation(
        distance=2.4, logits_weight=2.5, confidence_weight=0.25, feature_smoothing=40, logit_smoothing=15
    ),
}
"""By the number of classes."""


def smooth(histograms: Tensor, size: int) -> Tensor:
    """Running mean over `size` bins of every row; of an even number there is one more above than below."""
    below = (size - 1) // 2
    padded = F.pad(histograms.unsqueeze(1), (below, size - 1 - below), mode="replicate")
    return F.avg_pool1d(padded, size, stride=1).squeeze(1)


class Histogram:
    """Shares of an example's values in bins over the range that they had in training, and the mean of those."""

    def __init__(self, low: float, high: float, bins: int, floor: float) -> None:
        self._low, self._high, self._bins, self._floor = low, high, bins, floor
        self._total: Tensor | float = 0.0
        self._count = 0

    def shares(self, values: Tensor) -> Tensor:
        """[n, values] to [n, bins]; what is out of range counts as a value in no bin."""
        width = max(self._high - self._low, 1e-12) / self._bins
        places = ((values - self._low) / width).floor().clamp(0, self._bins - 1).long()
        places = torch.where((values >= self._low) & (values <= self._high), places, self._bins)
        counts = values.new_zeros(len(values), self._bins + 1)
        return counts.scatter_add_(1, places, torch.ones_like(values))[:, :-1] / values.shape[1]

    def add(self, values: Tensor) -> None:
        """Take training examples into the mean."""
        self._total = self._total + self.shares(values).double().sum(dim=0)
        self._count += len(values)

    def divergence(self, values: Tensor, smoothing: int) -> Tensor:
        """D of every row, [n]."""
        usual = torch.as_tensor(self._total).float() / self._count + self._floor
        found = smooth(self.shares(values), smoothing) + self._floor
        p, q = usual / usual.sum(), found / found.sum(dim=1, keepdim=True)
        return ((p - q) * (p.log() - q.log())).sum(dim=1)


class WeiPer(Detector):
    """Divergence of both histograms, less the confidence of the perturbed heads."""

    name = "weiper"
    title = "WeiPer+KLD"
    paper = (
        "Granz, Heurich, Landgraf: WeiPer: OOD Detection using Weight Perturbations of Class Projections. NeurIPS 2024"
    )

    def __init__(self, *, perturbation: Perturbation | None = None, seed: int = 0) -> None:
        self.perturbation, self.seed = perturbation, seed
        self._weight: Tensor | None = None

    def fit(self, bank: Bank) -> Self:
        self._used = used = of_classes(PUBLISHED, bank.classes) if self.perturbation is None else self.perturbation
        self._perturb(bank, used)
        rows = max(1, CHUNK_BYTES // (used.repeats * bank.classes * bank.features.element_size()))
        extremes = [self.perturbed(part).aminmax() for part in bank.features.split(rows)]
        low, high = float(min(each.min for each in extremes)), float(max(each.max for each in extremes))
        ends = bank.features.aminmax()
        self._features = Histogram(float(ends.min), float(ends.max), used.bins, FEATURE_FLOOR)
        self._logits = Histogram(low, high, used.bins, LOGIT_FLOOR)
        for part in bank.features.split(rows):
            self._features.add(part)
            self._logits.add(self.perturbed(part))
        return self

    def _perturb(self, bank: Bank, used: Perturbation) -> None:
        """W̃ and b of all draws, one draw after the other, as they answer in the network."""
        head, scale = bank.network.head, logit_scale(bank)
        weight = head.weight.detach().float()
        noise = torch.randn(used.repeats, *weight.shape, generator=torch.Generator().manual_seed(self.seed))
        directions = F.normalize(noise, dim=2).to(weight.device)
        moved = weight + used.distance * weight.norm(dim=1, keepdim=True) * directions
        bias = weight.new_zeros(len(weight)) if head.bias is None else head.bias.detach().float()
        self._weight, self._bias = scale * moved.flatten(0, 1), scale * bias.repeat(used.repeats)

    def perturbed(self, features: Tensor) -> Tensor:
        """z̃ of all draws, [n, r K]."""
        assert self._weight is not None
        return F.linear(features, self._weight, self._bias)

    def score(self, seen: Seen) -> Tensor:
        if self._weight is None:
            raise SettingError("WeiPer has no perturbed heads to answer with: call fit(bank) before score(seen)")
        used, logits = self._used, self.perturbed(seen.features)
        confidence: Tensor = logits.unflatten(1, (used.repeats, -1)).softmax(dim=2).amax(dim=2).mean(dim=1)
        of_features = self._features.divergence(seen.features, used.feature_smoothing)
        of_logits = self._logits.divergence(logits, used.logit_smoothing)
        return of_features + used.logits_weight * of_logits - used.confidence_weight * confidence
