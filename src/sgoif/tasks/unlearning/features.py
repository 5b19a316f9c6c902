"""Features of a network: what goes into its last linear layer, read once, in evaluation mode.

The layer must be the model's last word: its outputs are the logits, or the logits are those outputs times a constant.
A single output stands for two classes, as everywhere in this package.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from sgoif.core.batches import to_device
from sgoif.core.data import Indexed, indices_of, isolated_random_state
from sgoif.errors import LayerError, SettingError
from sgoif.tasks.argument_checks import check_model
from sgoif.tasks.labelled_batches import labelled_batches
from sgoif.tracking.evaluation import evaluation, forward
from sgoif.tracking.head_detection import bare, find_head

BATCH = 256
LOOKED_AT = 8
"""Examples of the first batch that the head is found with."""
AGREES = 1e-3
"""Relative difference up to which logits count as a multiple of the head's outputs; half precision needs that much."""


@dataclass(frozen=True)
class ModelHead:
    """The head of a model."""

    name: str
    layer: nn.Linear
    constant: float
    """Logits are so many times the outputs of the layer."""
    classes: int
    single: bool
    """One output for two classes."""

    @property
    def bias(self) -> bool:
        return self.layer.bias is not None

    def start(self) -> Tensor:
        """The head's own weights as w; a single output is shared out between its two classes."""
        matrix = self.layer.weight.detach().double()
        if self.bias:
            matrix = torch.cat([matrix, self.layer.bias.detach().double()[:, None]], dim=1)
        return (torch.cat([-matrix, matrix]) / 2 if self.single else matrix).reshape(-1)


@dataclass(frozen=True)
class Read:
    """Features [n, D], labels and names of examples."""

    features: Tensor
    labels: Tensor
    ids: list[str]


def read_head(model: nn.Module, inputs: Any) -> ModelHead:
    """The head that the model uses for these inputs, and how its logits come about."""
    with evaluation(model), torch.no_grad():
        few = inputs[:LOOKED_AT] if isinstance(inputs, Tensor) else inputs
        head, _ = find_head(model, lambda: forward(model, few))
        head.require_rows()
        name, layer, _ = head
        with record_calls(layer) as kept:
            logits = forward(model, inputs).float()
    found = kept[-1][1].float()
    logits = logits[:, None] if logits.dim() == 1 else logits
    if logits.shape != found.shape:
        raise LayerError(
            f"the last linear layer {name!r} gives {tuple(found.shape)} and the model {tuple(logits.shape)}; the head"
            " must be the model's last layer"
        )
    given, own = logits.double(), found.double()
    constant = float((given * own).sum() / own.square().sum().clamp_min(torch.finfo(torch.float64).tiny))
    away = float((logits - constant * found).abs().max())
    if not math.isfinite(constant) or constant <= 0 or away > AGREES * float(logits.abs().max()):
        raise LayerError(
            f"the model's logits are not those of its last linear layer {name!r}, nor a multiple of them, so the layer"
            " is not a head that can be fitted on its own"
        )
    outputs_count = int(found.shape[1])
    return ModelHead(name, layer, constant, max(2, outputs_count), outputs_count == 1)


@contextmanager
def record_calls(layer: nn.Module) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Inputs and outputs of a layer, call by call."""
    found: list[tuple[Tensor, Tensor]] = []
    handle = layer.register_forward_hook(lambda _, inputs, output: found.append((inputs[0].detach(), output.detach())))
    try:
        yield found
    finally:
        handle.remove()


def read_features(model: nn.Module, data: Any, head: ModelHead | None = None) -> tuple[Read, ModelHead]:
    """One pass over a data set, a loader or batches (x, y) or (x, y, index); the model is left as it was."""
    check_model(model, "an unlearner")
    model = bare(model)
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise LayerError("the model has no parameters, so there is no head to take examples out of")
    device = parameter.device
    features, labels, ids = [], [], list[str]()
    with isolated_random_state(device):
        for x, y, names in labelled_batches(data, BATCH, _names):
            inputs = to_device(x, device)
            if head is None:
                head = read_head(model, inputs)
            with evaluation(model), torch.no_grad(), record_calls(head.layer) as kept:
                forward(model, inputs)
            if len(kept) != 1 or len(kept[0][0]) != len(y):
                raise LayerError(f"the head {head.name!r} was not used once for every example of a batch")
            features.append(kept[0][0].float())
            labels.append(y.to(device))
            ids += map(str, range(len(ids), len(ids) + len(y)) if names is None else names)
    if head is None:
        raise SettingError("the data set is empty: there is nothing to delete")
    return Read(torch.cat(features), torch.cat(labels), ids), head


def _names(data: Any) -> Sequence[int]:
    """Names of the items: their indices in the whole, where the data set is a part of one."""
    if isinstance(data, Indexed):
        return _names(data.dataset)
    if isinstance(data, Subset):
        whole = _names(data.dataset)
        return [whole[int(index)] for index in data.indices]
    return indices_of(data)
