"""A fitted head as the weights of a linear layer, and the layer of a network that it belongs in."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from sgoif.errors import LayerError
from sgoif.tasks.unlearning.newton import Fitted


class Head(NamedTuple):
    """Weights of the last linear layer."""

    weight: Tensor
    """[C, D]"""
    bias: Tensor | None
    """[C]"""


def head_of(fitted: Fitted, *, single: bool) -> Head:
    """The head in float64; `single` where the network has one logit for two classes."""
    matrix = fitted.w.view(fitted.data.classes, -1)
    matrix = matrix[1:] - matrix[:1] if single else matrix.clone()
    return Head(matrix[:, :-1], matrix[:, -1]) if fitted.data.bias else Head(matrix, None)


def layer_for(head: Head, model: nn.Module, name: str | None) -> nn.Linear:
    """The linear layer of a model with this name, or else the last one; raises where the head does not fit it."""
    known = dict(model.named_modules())
    linear = [module for module in known.values() if isinstance(module, nn.Linear)]
    layer = known.get(name) if name is not None else linear[-1] if linear else None
    if not isinstance(layer, nn.Linear) or layer.weight.shape != head.weight.shape:
        raise LayerError(
            f"the model has no linear layer {name or 'at its end'} of {tuple(head.weight.shape)}; it is not the model"
            " that this head belongs to"
        )
    if (layer.bias is None) != (head.bias is None):
        raise LayerError(f"the model's last layer has {'no' if layer.bias is None else 'a'} bias, unlike this head")
    return layer
