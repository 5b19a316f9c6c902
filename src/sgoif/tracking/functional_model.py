"""The watched weights as one flat vector: the model's output as a function of it, for exact curvature products."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from sgoif.core.logits import extract_logits, two_classes
from sgoif.core.parameter_layout import Layout
from sgoif.errors import AnchorError, LayerError
from sgoif.tracking.evaluation import evaluation
from sgoif.tracking.layers.base import WatchedLayer


def watched_output(
    model: nn.Module,
    layers: Sequence[WatchedLayer],
    layout: Layout,
    inputs: Any,
    answer: Callable[[Tensor], Tensor] = two_classes,
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Logits as a function of a displacement [P] of the watched weights, and the zero displacement.

    `answer` brings what the model gives into the form that a loss takes. Displacements of projected layers are lifted,
    so the function is defined for every layout. The model runs in evaluation mode and uncompiled, attention as plain
    products: fused kernels have no forward-mode derivative.
    """
    base = {name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)}

    def output(displacement: Tensor) -> Tensor:
        moved = dict(base)
        for layer, block in zip(layers, layout.split(displacement.unsqueeze(0)), strict=True):
            for local, change in layer.parameters_from(layer.lift(block[0])).items():
                name = f"{layer.name}.{local}" if layer.name else local
                if name not in base:
                    raise LayerError(
                        f"the {local} of layer {layer.name!r} is computed from other parameters (by a norm or a"
                        " pruning, say); exact curvature needs weights that can be moved by themselves"
                    )
                moved[name] = base[name] + change.to(base[name].dtype)
        args, kwargs = ((), inputs) if isinstance(inputs, dict) else ((inputs,), {})
        with evaluation(model), sdpa_kernel(SDPBackend.MATH), torch.compiler.set_stance("force_eager"):
            logits = extract_logits(functional_call(model, moved, args, kwargs, tie_weights=False))
        if logits is None:
            raise AnchorError("the model did not return logits")
        return answer(logits).to(point.dtype)

    weight = layers[-1].weight
    # Half-precision weights still get displacements, and so curvature, in float32.
    point = torch.zeros(layout.size, device=weight.device, dtype=torch.promote_types(weight.dtype, torch.float32))
    return output, point
