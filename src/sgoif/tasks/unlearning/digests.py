"""Digests of tensors and examples: what a log says about a head and its data, without holding them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import torch
from torch import Tensor

from sgoif.tasks.unlearning.head import HeadData


def digest(*tensors: Tensor) -> str:
    """Changes when any number does."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        for part in tensor.detach().reshape(-1).split(2**24):
            sha.update(part.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def data_digest(ids: Sequence[str], data: HeadData) -> str:
    """Changes when an example is added, removed or changed."""
    named = hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()
    return hashlib.sha256(f"{named} {digest(data.features, data.labels)}".encode()).hexdigest()
