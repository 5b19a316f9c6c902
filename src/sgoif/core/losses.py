"""Losses of single examples, and what the gradient of a batch loss says about its scale and its labels."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sgoif.errors import SettingError

Loss = Callable[[Tensor, Tensor], Tensor]


def per_example(loss: Loss | None) -> Loss:
    """A function of (logits [B, C], labels [B]) that gives one loss per example.

    Modules with a `reduction` are copied with reduction "none", and what they give for every logit is added up; a
    function that reduces is applied to one example at a time through vmap. None is cross-entropy.
    """
    if loss is None:
        return cross_entropy
    if not (isinstance(loss, nn.Module) and hasattr(loss, "reduction")):
        return one_at_a_time(loss)
    single = _unreduced(loss)

    def run(logits: Tensor, labels: Tensor) -> Tensor:
        values: Tensor = single(logits, labels)
        return values.flatten(1).sum(1) if values.dim() > 1 else values

    return run


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The default loss, one value per example; `labels` are class numbers, or probabilities [B, C]."""
    return F.cross_entropy(logits, labels, reduction="none")


def is_cross_entropy(loss: Loss | None) -> bool:
    """Whether this is torch's cross-entropy, of whatever settings: it is linear in the probabilities of labels."""
    return loss is None or loss is F.cross_entropy or type(loss) is nn.CrossEntropyLoss


def is_plain(loss: Loss | None) -> bool:
    """Whether this is cross-entropy without class weights and smoothing, off whose gradient labels can be read."""
    plain = not isinstance(loss, nn.CrossEntropyLoss) or (loss.weight is None and not loss.label_smoothing)
    return is_cross_entropy(loss) and plain


def one_logit(loss: nn.BCEWithLogitsLoss) -> Loss | None:
    """A loss of one logit as one of two classes [0, z]: cross-entropy (None), unless it weighs classes or examples."""
    if loss.pos_weight is None and loss.weight is None:
        return None
    single = _unreduced(loss)
    return lambda logits, labels: single(logits[..., 1] - logits[..., 0], labels.to(logits.dtype))


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-odds of every label, [B], from logits [..., B, C]: unlike the loss it goes on moving where it is right."""
    picked = labels.expand(logits.shape[:-1]).unsqueeze(-1)
    others = logits.scatter(-1, picked, -torch.inf).logsumexp(-1)
    return logits.gather(-1, picked).squeeze(-1) - others


def negative_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The margin in the place of a loss."""
    return -margin(logits, labels)


def _unreduced(loss: Loss) -> Any:
    """A copy of a module with reduction "none"."""
    single: Any = copy.deepcopy(loss)
    single.reduction = "none"
    return single


def per_token(loss: Loss) -> Loss:
    """A module with a `reduction` as a function of logits [B, T, V] and tokens [B, T]: the sum over each row."""
    single = _unreduced(loss)

    def run(logits: Tensor, tokens: Tensor) -> Tensor:
        values: Tensor = single(logits.flatten(0, 1), tokens.flatten())
        return values.view(tokens.shape).sum(1)

    return run


def one_at_a_time(loss: Loss, *, batched: bool = True, loops: bool = False) -> Loss:
    """A function that reduces, applied to each example: as a batch of one (`batched`), or without an axis for it.

    `loops`: where vmap cannot, as of a function that picks tokens by a mask, one after the other.
    """

    def single(logits: Tensor, label: Tensor) -> Tensor:
        return (loss(logits.unsqueeze(0), label.unsqueeze(0)) if batched else loss(logits, label)).sum()

    def run(logits: Tensor, labels: Tensor) -> Tensor:
        try:
            return torch.func.vmap(single)(logits, labels)
        except RuntimeError as error:
            if loops:
                return torch.stack([single(*pair) for pair in zip(logits, labels, strict=True)])
            raise SettingError(
                "the given loss could not be evaluated example by example; give a loss that returns one value per"
                f" example (reduction='none'). The cause: {error}"
            ) from error

    return run


def gradient_of(loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    """∂ℓ_i/∂z_i for every example, [B, C]."""
    with torch.enable_grad():
        z = logits.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(loss(z, labels).sum(), z)
    return gradient


def read_labels_off(delta: Tensor, logits: Tensor) -> Tensor:
    """Labels from the gradient of a cross-entropy: the one logit that is pushed up.

    Where rounding leaves none, the label is what the model answers, so surely that nothing is left to push.
    """
    least, label = delta.min(dim=1)
    return torch.where(least < 0, label, logits.argmax(dim=1))
