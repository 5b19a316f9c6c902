"""How far an anchor is trusted: c_v ∈ [0, 1] from its solver residual.

    stability         c_v = clip(1 − ‖r_v‖ / τ, 0, 1)         the method: an absolute tolerance for all anchors
    hard              c_v = 1 if ‖r_v‖ ≤ τ else 0              the same tolerance without degrees of trust
    moving-average    c_v = clip(1 − ‖r_v‖ / 2m_v, 0, 1)      the simple rival: an anchor against its own past m_v
    none              c_v = 1

τ may differ from group to group (docs/method.md): `group_tolerance` scales it by the group's own quantile of residuals
over that of all anchors.

The anomaly gate comes first: anchors whose direction is not finite, or absurdly larger than the others', get c_v = 0
and start again from φ_v = 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from sgoif.errors import SettingError

Gate = Callable[[Tensor, Tensor, float | Tensor], Tensor]
"""Confidences [K] from residual norms [K], the moving average of each [K], and τ, for all or for each."""
ABSURD = 1e3
"""A direction this many times larger than the median direction is a numerical accident."""
OWN_VOICE = 8
"""A group with this many anchors has its own tolerance by half, on a logarithmic scale."""


def group_tolerance(residual: Tensor, groups: Tensor, count: int, quantile: float, tau: float) -> Tensor:
    """τ of every anchor [K] by its group: the `quantile` of the group's residuals, in the units of τ."""
    finite = torch.isfinite(residual)
    values, members = residual[finite].double(), groups[finite]
    if not len(values):
        return residual.new_full((len(residual),), tau)
    size = torch.bincount(members, minlength=count)
    order = torch.argsort(values)
    order = order[torch.argsort(members[order], stable=True)]  # by group, then by size
    last = size.cumsum(0)
    place = quantile * (size - 1).clamp_min(0).double()
    low = (last - size + place.floor().long()).clamp_max(len(values) - 1)
    high = (last - size + place.ceil().long()).clamp_max(len(values) - 1)
    ordered = values[order]
    own = torch.lerp(ordered[low], ordered[high], place - place.floor())
    whole = torch.quantile(values, quantile).clamp_min(torch.finfo(torch.float32).tiny)
    factor = (own / whole).clamp_min(torch.finfo(torch.float32).tiny) ** (size / (size + OWN_VOICE))
    return (tau * factor)[groups].to(residual.dtype).clamp_min(torch.finfo(residual.dtype).tiny)


def stability_gate(residual: Tensor, average: Tensor, tau: float | Tensor) -> Tensor:
    """In proportion to what is left of the tolerance."""
    return (1 - residual / tau).clamp(0, 1)


def hard_gate(residual: Tensor, average: Tensor, tau: float | Tensor) -> Tensor:
    """All or nothing."""
    return (residual <= tau).float()


def moving_average_gate(residual: Tensor, average: Tensor, tau: float | Tensor) -> Tensor:
    """An anchor against its own past."""
    share = residual / (2 * average).clamp_min(torch.finfo(residual.dtype).tiny)
    return torch.nan_to_num(1 - share, nan=0).clamp(0, 1)


def no_gate(residual: Tensor, average: Tensor, tau: float | Tensor) -> Tensor:
    """Full confidence in whatever was solved at all."""
    return torch.isfinite(residual).float()


GATES: dict[str, Gate] = {
    "stability": stability_gate,
    "hard": hard_gate,
    "moving-average": moving_average_gate,
    "none": no_gate,
}
"""Gates by the name that `gate=` takes."""


def find_gate(name: str) -> Gate:
    """The gate of this name."""
    if name not in GATES:
        raise SettingError(f"gate={name!r} is not valid: expected one of {', '.join(GATES)}")
    return GATES[name]


def anomalies(size: Tensor, residual: Tensor) -> Tensor:
    """Mask [K] of anchors whose φ_v or residual cannot be believed, from the norms of both."""
    finite = torch.isfinite(size) & torch.isfinite(residual)
    typical = size[finite].median() if bool(finite.any()) else size.new_tensor(0.0)
    odd: Tensor = ~finite | (size > ABSURD * typical.clamp_min(torch.finfo(size.dtype).tiny))
    return odd
