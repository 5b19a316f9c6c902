"""What the logits of training steps say: labels, margins, losses, and the scale of the loss of each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.core.losses import Loss, cross_entropy, gradient_of, read_labels_off
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


@dataclass
class Outputs:
    """What the logits say: labels, margins, losses, and the scale of the batch loss each example was part of."""

    label: Tensor
    rival: Tensor
    margin: Tensor
    logit_margin: Tensor
    loss: Tensor
    scale: Tensor
    probabilities: Tensor


def read_outputs(
    logits: Tensor, delta: Tensor | None, target: Tensor | None, loss: Loss, reduction: str, sizes: Sequence[int]
) -> Outputs:
    """Margins and losses of one or more steps, labels read off the gradient when no target is given."""
    z = logits.float()
    if target is None:
        assert delta is not None
        label = read_labels_off(delta, z)
    else:
        label = target
    column = label.unsqueeze(1)
    best, rival = z.scatter(1, column, float("-inf")).max(dim=1, keepdim=True)
    logarithms = torch.log_softmax(z, dim=1)
    probabilities = logarithms.exp()
    given = probabilities.gather(1, column)
    if reduction == "auto" and delta is not None:
        if loss is cross_entropy:
            # The probabilities, less one at the label. A model may answer with their logarithms; what moves all logits
            # alike, which changes no probability, is in the gradient of those alone.
            exact = probabilities.scatter(1, column, given - 1)
            delta = delta - probabilities * delta.sum(1, keepdim=True, dtype=torch.float32)
        else:
            exact = gradient_of(loss, z, label)
        scale = scales_of(delta, exact, sizes)
    else:
        scale = torch.tensor([1.0 / n if reduction == "mean" else 1.0 for n in sizes], device=z.device)
    own = -logarithms.gather(1, column).squeeze(1) if loss is cross_entropy else loss(z, label).float()
    return Outputs(
        label=label,
        rival=rival.squeeze(1),
        margin=(given - probabilities.gather(1, rival)).squeeze(1),
        logit_margin=(z.gather(1, column) - best).squeeze(1),
        loss=own,
        scale=for_examples(scale, sizes),
        probabilities=probabilities,
    )


def scales_of(delta: Tensor, reference: Tensor, sizes: Sequence[int]) -> Tensor:
    """s in δ ≈ s · reference for every step, [M]: 1/B for a mean, 1 for a sum, times what the loss was multiplied with.

    Loss scaling, gradient accumulation and reductions all multiply the loss; dividing by s undoes them. A batch that
    is fitted perfectly says nothing, so it gets 1/B. Stays on the device.
    """
    along = (delta * reference).sum(1, dtype=torch.float32)
    power = (reference * reference).sum(1)
    sound = along * 0 == 0  # where a loss scaler overflows, the scale is read off the other examples
    s = finite_or_zero(per_step(finite_or_zero(along), sizes) / per_step(power * sound, sizes))
    mean: float | Tensor = 1.0 / sizes[0]
    if not alike(sizes):
        mean = torch.tensor([1.0 / size for size in sizes]).to(delta.device, non_blocking=True)
    return torch.where(s > 0, s, mean)
