"""CombOOD: nearest neighbours among the features together with a Mahalanobis distance of how far activations reach.

Rajasekaran, Sajol, Berglind, Mukhopadhyay, Das: COMBOOD: A Semiparametric Approach for Detecting Out-of-distribution
Data for Image Classification. SDM 2024.

For the extremes e of an input (the largest and the negated smallest value of its logits and of all that goes into each
activation of the network), features φ of D dimensions and the k-th nearest of the training data,

    v     = e standardised, then transformed after Yeo and Johnson by each column's likeliest λ, and standardised again
    M²    = vᵀ (C + I)⁻¹ v,     C = covariance of v over the training data
    d     = ‖ φ/‖φ‖ − φ_(k)/‖φ_(k)‖ ‖²
    score = √D log d + M²

This is what the authors' code runs of the combinations in it: extremes for the parametric part, features before the
head for the other, weighed by √D; k = 50, and I added once. Their activations are ReLU, GELU and leaky ReLU, here as
modules or as functions. There is nothing to choose. Columns that never vary in training are left out. The extremes take
a second pass through the network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.neighbours import Neighbours

NEIGHBOURS = 50
RIDGE = 1.0
"""What is added to the diagonal of C, whose own entries are 1."""
ACTIVATIONS = frozenset(
    {torch.relu, Tensor.relu, torch.relu_, Tensor.relu_, F.relu, F.gelu, F.leaky_relu, F.leaky_relu_}
)
FARTHEST = 1e15
"""Of an entry of v: a power may carry an activation that is far out beyond what can be squared."""
SMALLEST = 1e-12
"""Of d, whose logarithm is taken; a training image has itself for a neighbour, but not fifty times."""


class Reaches(TorchFunctionMode):
    """Keeps the largest and the negated smallest value of whatever goes into an activation while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in ACTIVATIONS:
            self.kept.extend(reach(args[0]))
        return func(*args, **(kwargs or {}))


def reach(values: Tensor) -> tuple[Tensor, Tensor]:
    """The largest and the negated smallest value of every example, each float64 [n]."""
    ends = values.flatten(1).aminmax(dim=1)
    return ends.max.double(), -ends.min.double()


@torch.no_grad()
def extremes(network: Network, images: Tensor) -> Tensor:
    """e of every image, float64 [n, 2 + 2 activations]."""
    with Reaches() as found:
        logits = network.model(images)
    return torch.stack((*reach(logits), *found.kept), dim=1)


def yeo_johnson(values: Tensor, power: Tensor) -> Tensor:
    """The transform of every column by its own λ."""
    up, down = values.clamp_min(0).log1p(), (-values).clamp_min(0).log1p()
    rest = 2 - power
    above = torch.where(power == 0, up, torch.expm1(power * up) / torch.where(power == 0, 1.0, power))
    below = torch.where(rest == 0, down, torch.expm1(rest * down) / torch.where(rest == 0, 1.0, rest))
    return torch.where(values >= 0, above, -below)


class Gaussianised:
    """Columns brought as near to independent standard normal ones as their own scales and powers can."""

    def __init__(self, values: Tensor) -> None:
        self._varies = values.std(dim=0, unbiased=False) > 0
        kept = values[:, self._varies]
        self._mean, self._spread = kept.mean(dim=0), kept.std(dim=0, unbiased=False)
        scaled = (kept - self._mean) / self._spread
        powers = [float(stats.yeojohnson_normmax(column)) for column in scaled.cpu().numpy().T]
        self._power = scaled.new_tensor(powers)
        made = yeo_johnson(scaled, self._power)
        self._made_mean, self._made_spread = made.mean(dim=0), made.std(dim=0, unbiased=False)

    def __call__(self, values: Tensor) -> Tensor:
        """v of every row."""
        scaled = (values[:, self._varies] - self._mean) / self._spread
        made = (yeo_johnson(scaled, self._power) - self._made_mean) / self._made_spread
        return made.clamp(-FARTHEST, FARTHEST)


class CombOOD(Detector):
    """Logarithm of the distance to a neighbour plus the squared Mahalanobis distance of the extremes."""

    name = "combood"
    title = "CombOOD"
    paper = (
        "Rajasekaran, Sajol, Berglind, Mukhopadhyay, Das: COMBOOD: A Semiparametric Approach for Detecting"
        " Out-of-distribution Data for Image Classification. SDM 2024"
    )

    def __init__(self, *, k: int = NEIGHBOURS) -> None:
        if k < 1:
            raise SettingError(f"k = {k}: at least one neighbour is needed")
        self.k = k
        self._network: Network | None = None

    def fit(self, bank: Bank) -> Self:
        self._network = bank.network
        training = torch.cat([extremes(bank.network, seen.images) for seen, _ in bank.batches()])
        self._gaussianised = Gaussianised(training)
        values = self._gaussianised(training)
        covariance = values.T @ values / max(1, len(values) - 1)  # their mean is 0
        self._precision = torch.linalg.inv(covariance + RIDGE * torch.eye(len(covariance)).to(covariance))
        self._neighbours = Neighbours(bank.features, "cosine")
        return self

    def score(self, seen: Seen) -> Tensor:
        if self._network is None:
            raise SettingError("CombOOD has no network to pass the images through: call fit(bank) before score(seen)")
        nearest = self._neighbours.nearest(seen.features, min(self.k, len(self._neighbours))).values[:, -1].double()
        values = self._gaussianised(extremes(self._network, seen.images))
        distance: Tensor = ((values @ self._precision) * values).sum(dim=1)
        logarithm: Tensor = nearest.square().clamp_min(SMALLEST).log()
        return (math.sqrt(seen.features.shape[1]) * logarithm + distance).float()
