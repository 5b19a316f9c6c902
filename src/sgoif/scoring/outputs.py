"""What the logits of training steps say: labels, margins, losses, and the scale of the loss of each step."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sgoif.core.losses import read_labels_off
from sgoif.core.objective import Columns, Objective
from sgoif.stability.running_mean import finite_or_zero


def alike(sizes: Sequence[int]) -> bool:
    """Whether all steps have the same number of examples."""
    return min(sizes) == max(sizes)


def per_step(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """Sum of the values [R] of each step, [M]; the order of summation never varies."""
    if alike(sizes):
        return values.view(len(sizes), -1).sum(1)
    return torch.stack([part.sum() for part in values.split(list(sizes))])


def for_examples(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """The value of each step [M] for all of its examples, [R]."""
    if alike(sizes):
        return values.repeat_interleave(sizes[0])
    return torch.cat([value.expand(size) for value, size in zip(values.unbind(), sizes, strict=True)])


class Outputs(NamedTuple):
    """What the logits say: labels, margins, losses, and the scale of the batch loss each example was part of."""

    columns: Columns
    loss: Tensor
    scale: Tensor
    share: Tensor | None
    """What the label counts in the target; None: all of it."""


def read_outputs(
    objective: Objective,
    logits: Tensor,
    delta: Tensor,
    target: Tensor | None,
    label: Tensor | None,
    reduction: str,
    sizes: Sequence[int],
) -> Outputs:
    """Columns, losses and scales of one or more steps; labels are read off the gradient where no target is given."""
    z = logits.float()
    if target is None:
        target = read_labels_off(delta, z)
    columns = objective.columns(z, target if label is None else label)
    if reduction == "auto":
        scale = scales_of(*objective.comparable(z, delta, target, columns), sizes, objective.entries(target))
    elif reduction == "mean":
        scale = mean_scales(sizes, objective.entries(target), z.device)
    else:
        scale = torch.ones(len(sizes), device=z.device)
    losses, share = objective.losses(z, target, columns), objective.share(target, columns.label)
    return Outputs(columns, losses, for_examples(scale, sizes), share)


def mean_scales(sizes: Sequence[int], entries: Tensor | None, device: torch.device) -> Tensor:
    """1/N of every step, [M], N being what its mean is taken over: examples, or their `entries` [R]."""
    if entries is None:
        return torch.tensor([1.0 / n for n in sizes]).to(device, non_blocking=True)
    return 1.0 / per_step(entries, sizes).clamp_min(1)


def scales_of(delta: Tensor, reference: Tensor, sizes: Sequence[int], entries: Tensor | None = None) -> Tensor:
    """s in δ ≈ s · reference for every step, [M]: 1/B for a mean, 1 for a sum, times what the loss was multiplied with.

    Loss scaling, gradient accumulation and reductions all multiply the loss; dividing by s undoes them. A batch that
    is fitted perfectly says nothing, so it gets 1/N (`mean_scales`). Stays on the device.
    """
    along = (delta * reference).reshape(len(delta), -1).sum(1, dtype=torch.float32)
    power = (reference * reference).reshape(len(delta), -1).sum(1)
    sound = along * 0 == 0  # where a loss scaler overflows, the scale is read off the other examples
    s = finite_or_zero(per_step(finite_or_zero(along), sizes) / per_step(power * sound, sizes))
    same = entries is None and alike(sizes)
    mean = 1.0 / sizes[0] if same else mean_scales(sizes, entries, delta.device)
    return torch.where(s > 0, s, mean)
