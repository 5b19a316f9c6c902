"""How far two pictures are apart once one is laid over the other: moved, and made larger or smaller each way.

The first, a, is warped and given the contrast of the second, b, each colour without its mean,

    min over p of Σ |b(x) − g · a(W(x; p))|²        W(x, y) = (p₁ x + p₂, p₃ y + p₄)

by a few steps of Gauss–Newton (Lucas & Kanade 1981). What counts is the part of b that a covers. Slopes, the
differences of neighbouring pixels, are compared besides: in them fine detail counts as much as shades.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.core.types import Array

STEPS = 5
MOST, COVERED = 0.25, 0.6
"""By how much a scale may differ from 1 and a move from 0, in halves of a side; least share of b that a covers."""
AT_ONCE = 512
DAMPING, LONGEST = 1e-3, 0.1
"""Share of the mean curvature that is added to each, and the most that one step may change."""


def registered(first: Array, second: Array) -> Array:
    """Distances of the colours and of the slopes of pairs of images [n, C, S, S] of 255 levels: [n, 2], from 0 to 2."""
    if not len(first):
        return np.zeros((0, 2))
    parts = range(0, len(first), AT_ONCE)
    return np.concatenate([_registered(first[s : s + AT_ONCE], second[s : s + AT_ONCE]) for s in parts])


@torch.inference_mode()
def _registered(first: Array, second: Array) -> Array:
    a, b = (torch.from_numpy(np.ascontiguousarray(images, np.float32)) / 255 for images in (first, second))
    side = a.shape[-1]
    line = (torch.arange(side) + 0.5) / side * 2 - 1
    p = torch.tensor([1.0, 0.0, 1.0, 0.0]).repeat(len(a), 1)
    best, found = torch.full((len(a),), 2.0), torch.full((len(a),), 2.0)
    slopes_of_b = _slopes(b)
    for step in range(STEPS + 1):
        x, y = p[:, :1] * line + p[:, 1:2], p[:, 2:3] * line + p[:, 3:]
        grid = torch.stack([x[:, None].expand(-1, side, -1), y[..., None].expand(-1, -1, side)], dim=-1)
        inside = (grid.abs() <= 1).all(-1)[:, None].float()
        warped = F.grid_sample(a, grid, padding_mode="border", align_corners=False)
        moved, still = _centred(warped, inside), _centred(b, inside)
        apart = _distance(moved, still)
        slopes = _slopes(warped)
        better = (inside.mean((1, 2, 3)) >= COVERED) & (apart < best)
        best = torch.where(better, apart, best)
        among = (
            torch.cat([slope * inside for slope in slopes], 1),
            torch.cat([slope * inside for slope in slopes_of_b], 1),
        )
        found = torch.where(better, _distance(*among), found)
        if step == STEPS:
            break
        gain = (moved * still).sum((1, 2, 3)) / (moved**2).sum((1, 2, 3)).clamp_min(1e-9)
        down, across = (_centred(slope, inside) * gain[:, None, None, None] for slope in slopes)
        columns = [across * line, across, down * line[:, None], down, moved]
        jacobian = torch.stack(columns, 1).flatten(2)
        normal = jacobian @ jacobian.mT
        damped = DAMPING * normal.diagonal(dim1=1, dim2=2).mean(1)[:, None] + 1e-9
        normal = normal + torch.diag_embed(damped.expand(-1, len(columns)))
        rest = (still - gain[:, None, None, None] * moved).flatten(1)
        change = torch.linalg.solve(normal, jacobian @ rest[..., None])[:, :4, 0].clamp(-LONGEST, LONGEST)
        # The slopes are those of the warped image, so the step goes before the warp.
        scale, move = p[:, ::2], p[:, 1::2]
        p = torch.stack([scale * (1 + change[:, ::2]), scale * change[:, 1::2] + move], 2).flatten(1)
        p = torch.stack([p[:, ::2].clamp(1 - MOST, 1 + MOST), p[:, 1::2].clamp(-MOST, MOST)], 2).flatten(1)
    return torch.stack([best, found], 1).double().numpy()


def _centred(images: Tensor, inside: Tensor) -> Tensor:
    """Without the mean of each colour, and zero outside."""
    mean = (images * inside).sum((2, 3), keepdim=True) / inside.sum((2, 3), keepdim=True).clamp_min(1)
    return (images - mean) * inside


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Of images as vectors of length one."""
    lengths = (one**2).sum((1, 2, 3)) * (other**2).sum((1, 2, 3))
    return (2 - 2 * (one * other).sum((1, 2, 3)) / lengths.clamp_min(1e-12).sqrt()).clamp_min(0).sqrt()


def _slopes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Differences down and across, for each half of a side; none at the edges."""
    side = images.shape[-1]
    across, down = torch.zeros_like(images), torch.zeros_like(images)
    across[..., 1:-1] = (images[..., 2:] - images[..., :-2]) * (side / 4)
    down[:, :, 1:-1] = (images[:, :, 2:] - images[:, :, :-2]) * (side / 4)
    return down, across
