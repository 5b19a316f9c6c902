"""Where training examples lie within their class, in units of how examples scatter in any class.

With features a_i (the inputs of the head), labels y_i and class means m_c,

    S = Σ_i (a_i − m_{y_i})(a_i − m_{y_i})ᵀ / N          pooled over all classes
    w_i = Rᵀ (a_i − m_{y_i}),      R Rᵀ = (S + λ tr(S)/D · I)⁻¹

S is pooled on purpose. Poison of one class is a large part of that class's own covariance, which would whiten it away,
but a small part of the pooled one. λ = 1 keeps directions in which nothing scatters from deciding: what lies beside the
training features, as inputs with a trigger do, would otherwise be far away in all of them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.core.precision import full_precision

RIDGE = 1.0
"""λ, as a multiple of the mean eigenvalue of S."""
ROWS_AT_ONCE = 8192
SMALLEST = 1e-12
"""Least mean eigenvalue, for features that do not scatter at all."""
WIDEST = 4096
"""Features with more dimensions are projected to this many at random; distances survive that."""


@dataclass(frozen=True)
class Geometry:
    """Class means and the common scale of some features."""

    means: Tensor
    """[C, D]; zero for classes without examples."""
    counts: Tensor
    """[C]"""
    root: Tensor
    """R, [D, D]"""

    @property
    def device(self) -> torch.device:
        return self.root.device

    @full_precision
    def whiten(self, features: Tensor, classes: Tensor | int) -> Tensor:
        """w of some features, seen from the mean of these classes."""
        centres = self.means[classes]
        return (features.float() - centres) @ self.root


@full_precision
def fit_geometry(features: Tensor, labels: Tensor, classes: int) -> Geometry:
    """Means and scale of features [N, D] with labels [N] on the same device."""
    device, size = features.device, features.shape[1]
    counts = torch.bincount(labels, minlength=classes)
    sums = torch.zeros(classes, size, dtype=torch.float64, device=device)
    parts = [slice(first, first + ROWS_AT_ONCE) for first in range(0, len(features), ROWS_AT_ONCE)]
    for rows in parts:
        sums.index_add_(0, labels[rows], features[rows].double())
    means = (sums / counts.clamp_min(1).unsqueeze(1)).float()
    scatter = torch.zeros(size, size, dtype=torch.float64, device=device)
    for rows in parts:
        apart = features[rows].float() - means[labels[rows]]
        scatter += (apart.T @ apart).double()
    return Geometry(means, counts, inverse_root(scatter / max(1, len(features))).float())


def inverse_root(scatter: Tensor) -> Tensor:
    """R with R Rᵀ = (S + λ tr(S)/D · I)⁻¹."""
    values, vectors = torch.linalg.eigh((scatter + scatter.T) / 2)
    values = values.clamp_min(0)
    mean = values.mean().clamp_min(SMALLEST)
    root: Tensor = vectors * (values + RIDGE * mean).rsqrt()
    return root


def project(features: Tensor, seed: int = 0) -> Tensor:
    """The same features, [N, D]; those with more than 4,096 dimensions projected."""
    flat = features.flatten(1)
    if flat.shape[1] <= WIDEST:
        return flat
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(flat.shape[1], WIDEST, generator=generator) / WIDEST**0.5
    projected: Tensor = flat.float() @ matrix.to(flat.device)
    return projected
