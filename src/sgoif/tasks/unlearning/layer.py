"""A fitted head as the weights of a linear layer, and the layer of a network that it belongs in."""

from typing import NamedTuple

from torch import Tensor, nn

from sgoif.errors import LayerError
from sgoif.tasks.argument_checks import check_model
from sgoif.tasks.unlearning.newton import FittedHead
from sgoif.tracking.head_detection import bare


class Head(NamedTuple):
    """Weights of the last linear layer."""

    weight: Tensor
    """[C, D]"""
    bias: Tensor | None
    """[C]"""


def head_of(fitted: FittedHead, *, single: bool) -> Head:
    """The head in float64; `single` where the network has one logit for two classes."""
    matrix = fitted.w.view(fitted.data.classes, -1)
    matrix = matrix[1:] - matrix[:1] if single else matrix.clone()
    return Head(matrix[:, :-1], matrix[:, -1]) if fitted.data.bias else Head(matrix, None)


def layer_for(head: Head, model: nn.Module, name: str | None) -> nn.Linear:
    """The linear layer of a model with this name, or else the last one; raises where the head does not fit it."""
    check_model(model, "an unlearner")
    known = dict(model.named_modules()) | dict(bare(model).named_modules())
    linear = [module for module in known.values() if isinstance(module, nn.Linear)]
    layer = known.get(name) if name is not None else linear[-1] if linear else None
    if not isinstance(layer, nn.Linear) or layer.weight.shape != head.weight.shape:
        raise LayerError(
            f"the model has no linear layer {name or 'at its end'} of {tuple(head.weight.shape)}; it is not the model"
            " that this head belongs to"
        )
    if (layer.bias is None) != (head.bias is None):
        raise LayerError(f"the model's last layer has {'no' if layer.bias is None else 'a'} bias, unlike this head")
    _check_own_weights(layer, model)
    return layer


def _check_own_weights(layer: nn.Linear, model: nn.Module) -> None:
    """Raise where weights that are written into a layer would be lost, or would change another layer as well."""
    own = dict(layer.named_parameters(recurse=False, remove_duplicate=False))
    if "weight" not in own or (layer.bias is not None and "bias" not in own):
        raise LayerError(
            "the weights of the model's last layer are computed from others (weight_norm, spectral_norm), so a head"
            " written there would be lost. Make them plain first: torch.nn.utils.parametrize.remove_parametrizations,"
            " or remove_weight_norm and remove_spectral_norm for the older kind"
        )
    shared = [
        f"{place}.{name}" if place else name
        for place, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
        if module is not layer and any(parameter is each for each in own.values())
    ]
    if shared:
        raise LayerError(
            f"the model's last layer shares its weights with {', '.join(shared)}, which would change too. Give it some"
            " of its own first: layer.weight = torch.nn.Parameter(layer.weight.detach().clone())"
        )
