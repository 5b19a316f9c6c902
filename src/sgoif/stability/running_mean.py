"""Running means that stay on the device: a weighted sum and its weight, [2]."""

import torch
from torch import Tensor


def finite_or_zero(values: Tensor) -> Tensor:
    """Zero in place of what is infinite or not a number; one operation, where a mask would take six."""
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def fold_mean(running: Tensor, values: Tensor, decay: float) -> None:
    """Fold the mean of the finite ones among `values` into a running mean, in place."""
    count = (values * 0 == 0).sum().clamp_min_(1)
    mean = finite_or_zero(values).sum().div_(count)
    running.mul_(decay).add_(torch.stack([mean, torch.ones_like(mean)]), alpha=1 - decay)
