"""What a model answers with: the logits in it, in one form for any number of classes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def extract_logits(output: Any) -> Tensor | None:
    """The logits in a model's output: a tensor, the first entry of a tuple, or the field `logits`."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        output = output.get("logits")
    elif hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else None


def is_single(logits: Tensor) -> bool:
    """Whether this is one logit per example, as a two-class model with a sigmoid gives."""
    return logits.dim() == 1 or (logits.dim() == 2 and logits.shape[1] == 1)


def two_classes(logits: Tensor) -> Tensor:
    """A single logit z as the logits [0, z] of two classes, whose softmax is the sigmoid; others as they are."""
    if not is_single(logits):
        return logits
    logits = logits.reshape(-1, 1)
    return torch.cat([torch.zeros_like(logits), logits], dim=1)


def same(output: Tensor, logits: Tensor) -> bool:
    """Whether they are one tensor, or views of one."""
    return output.numel() == logits.numel() and output.data_ptr() == logits.data_ptr()


def version_of(tensor: Tensor) -> int:
    """How often a tensor was overwritten; inference tensors do not count it."""
    return 0 if tensor.is_inference() else tensor._version
