"""What is done with features: fewer of them that say nearly as much, and what the neighbours of each row say."""

import numpy as np
import torch
from torch import Tensor

from sgoif.core.types import Array
from sgoif.errors import SettingError

WIDTH = 256
"""Principal components that are kept: heads on 512 ranked labels no better on any of nine data sets."""
NEIGHBOURS = 10
"""As in SimiFeat (Zhu et al. 2022)."""
AT_ONCE = 2**24
"""Numbers in memory at a time."""


def principal(features: Array, width: int = WIDTH, device: torch.device | str = "cpu") -> Tensor:
    """The strongest principal components, their mean square over all being one: float32 [n, at most `width`]."""
    count, columns = features.shape
    step = max(1, AT_ONCE // max(columns, 1))
    total = torch.zeros(columns, dtype=torch.float64, device=device)
    products = torch.zeros(columns, columns, dtype=torch.float64, device=device)
    for start in range(0, count, step):
        rows = _rows(features, start, step, device).double()
        total += rows.sum(0)
        products += rows.T @ rows
    if not bool(torch.isfinite(products).all()):
        raise SettingError("features are not all finite numbers")
    mean = total / max(count, 1)
    variance, directions = torch.linalg.eigh(products / max(count, 1) - mean.outer(mean))
    kept = directions.flip(1)[:, : min(width, columns)]
    scale = variance.flip(0)[: kept.shape[1]].clamp_min(0).mean().sqrt().clamp_min(1e-12)
    down, centre = (kept / scale).float(), mean.float()
    parts = [(_rows(features, start, step, device) - centre) @ down for start in range(0, count, step)]
    return torch.cat(parts) if parts else torch.zeros(0, kept.shape[1], device=device)


def neighbours_votes(
    features: Tensor, labels: Tensor, classes: int, group: Tensor, neighbours: int = NEIGHBOURS
) -> Tensor:
    """The share of each label among the nearest rows of other groups, by angle: [n, classes]."""
    units = torch.nn.functional.normalize(features, dim=1)
    count, group = len(units), group.to(units.device)
    votes = torch.zeros(count, classes)
    step = max(1, AT_ONCE // max(count, 1))
    for start in range(0, count, step):
        alike = units[start : start + step] @ units.T
        alike[group[start : start + step, None] == group] = -torch.inf
        nearest = alike.topk(min(neighbours, count - 1)).indices.cpu()
        some = votes[start : start + step]
        some.scatter_add_(1, labels[nearest], torch.ones(nearest.shape))
        some /= max(nearest.shape[1], 1)
    return votes


def _rows(features: Array, start: int, step: int, device: torch.device | str) -> Tensor:
    return torch.from_numpy(np.asarray(features[start : start + step], dtype=np.float32)).to(device)
