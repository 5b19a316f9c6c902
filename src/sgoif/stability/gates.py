"""How far an anchor is trusted: c_v ∈ [0, 1] from its solver residual.

    stability         c_v = clip(1 − ‖r_v‖ / τ, 0, 1)         the method: an absolute tolerance for all anchors
    moving-average    c_v = clip(1 − ‖r_v‖ / 2m_v, 0, 1)      the simple rival: an anchor against its own past m_v
    none              c_v = 1

The anomaly gate comes first: anchors whose direction is not finite, or absurdly larger than the others', get c_v = 0
and start again from φ_v = 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

ABSURD = 1e3
"""A direction this many times larger than the median direction is a numerical accident."""


def stability_gate(residual: Tensor, tau: float) -> Tensor:
    """Confidences [K] from residual norms [K] and the tolerance."""
    return (1 - residual / tau).clamp(0, 1)


def moving_average_gate(residual: Tensor, average: Tensor) -> Tensor:
    """Confidences [K] from residual norms [K] and the moving average of each."""
    share = residual / (2 * average).clamp_min(torch.finfo(residual.dtype).tiny)
    return torch.nan_to_num(1 - share, nan=0).clamp(0, 1)


def anomalies(phi: Tensor, residual: Tensor) -> Tensor:
    """Mask [K] of anchors whose φ_v or residual cannot be believed."""
    size = torch.linalg.vector_norm(phi, dim=-1)
    finite = torch.isfinite(size) & torch.isfinite(residual)
    typical = size[finite].median() if bool(finite.any()) else size.new_tensor(0.0)
    odd: Tensor = ~finite | (size > ABSURD * typical.clamp_min(torch.finfo(size.dtype).tiny))
    return odd
