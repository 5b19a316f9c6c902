"""Batches of inputs: made from items of a data set, measured, and moved to a device."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from sgoif.core.data import split_item, split_target
from sgoif.core.objective import Objective
from sgoif.errors import AnchorError


def read_items(
    dataset: Any, positions: Iterable[Any], device: torch.device | None = None, reader: Objective | None = None
) -> tuple[Any, Tensor]:
    """Inputs and targets of some items of a data set, collated, on a device; without a reader targets are labels."""
    if reader is None:
        pairs = [split_item(dataset[int(position)]) for position in positions]
        targets = torch.tensor([label for _, label in pairs], device=device)
    else:
        pairs = [split_target(dataset[int(position)]) for position in positions]
        targets = to_device(reader.stack([reader.read(raw) for _, raw in pairs]), device)
    return to_device(collate([inputs for inputs, _ in pairs]), device), targets


def collate(items: list[Any]) -> Any:
    """A batch of inputs, or an error that says why they do not fit together."""
    try:
        return default_collate(items)
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        raise AnchorError(
            "the inputs of the anchors cannot be put into one batch. Give the hold-out the transforms of the evaluation"
            f" data, so that every input is a tensor of the same shape. The cause: {error}"
        ) from error


def stacked(items: list[Any]) -> Tensor | list[Any]:
    """One tensor of all inputs where their shapes allow it."""
    tensors = all(isinstance(item, Tensor) for item in items)
    return torch.stack(items) if tensors and len({item.shape for item in items}) == 1 else items


def nbytes(inputs: Any) -> int:
    """Memory of inputs, whatever they are wrapped in."""
    if isinstance(inputs, Tensor):
        return inputs.numel() * inputs.element_size()
    if isinstance(inputs, np.ndarray):
        return inputs.nbytes
    if isinstance(inputs, dict):
        return sum(nbytes(v) for v in inputs.values())
    return sum(nbytes(v) for v in inputs) if isinstance(inputs, (tuple, list)) else 64


def to_device(batch: Any, device: torch.device | None) -> Any:
    """Tensors of a batch on a device, whatever they are wrapped in."""
    if device is None:
        return batch
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return [to_device(value, device) for value in batch]
    return batch


def batch_size(inputs: Any) -> int:
    """Examples in a batch of inputs."""
    if isinstance(inputs, Mapping):
        return batch_size(next(iter(inputs.values()), ()))
    return batch_size(inputs[0]) if _is_list_of_batches(inputs) else len(inputs)


def taken(inputs: Any, rows: Tensor) -> Any:
    """These examples of a batch of inputs, in this order: a tensor, several of them, or a list of anything else."""
    if isinstance(inputs, Mapping):
        return {name: taken(value, rows) for name, value in inputs.items()}
    if _is_list_of_batches(inputs):
        return [taken(value, rows) for value in inputs]
    return inputs[rows.to(inputs.device)] if isinstance(inputs, Tensor) else [inputs[int(row)] for row in rows]


def filled(batch: Tensor, size: int) -> Tensor:
    """A batch with its last example repeated up to `size`, where a network has to be given batches of one size."""
    return torch.cat([batch, batch[-1:].expand(size - len(batch), *batch.shape[1:])]) if len(batch) < size else batch


def _is_list_of_batches(inputs: Any) -> bool:
    """Whether a batch is a list of batches, one for each input of the model."""
    return isinstance(inputs, (list, tuple)) and bool(inputs) and isinstance(inputs[0], (Tensor, Mapping, list, tuple))
