"""How layers of each kind are read; a new kind is a subclass of `base.WatchedLayer` and a line in `READERS`."""

from typing import Any

from torch import nn

from sgoif.errors import LayerError
from sgoif.tracking.layers.base import WatchedLayer
from sgoif.tracking.layers.conv import ConvLayer
from sgoif.tracking.layers.embedding import EmbeddingLayer
from sgoif.tracking.layers.linear import LinearLayer
from sgoif.tracking.layers.norm import NORMS, NormLayer

READERS: dict[type[nn.Module], Any] = {
    nn.Linear: LinearLayer,
    nn.Conv2d: ConvLayer,
    nn.Embedding: EmbeddingLayer,
    **dict.fromkeys(NORMS, NormLayer),
}
"""The reader for each kind of module."""


def is_supported(module: nn.Module) -> bool:
    """Whether the module is of a kind that can be watched and has weights that are trained."""
    if not isinstance(module, tuple(READERS)):
        return False
    # A weight that is computed from others (by its norm, or pruned) has a graph only where the last pass kept one.
    return any(p.requires_grad for name, p in module.named_parameters() if "weight" in name)


def watch(name: str, module: nn.Module) -> WatchedLayer:
    """The reader for one module."""
    for kind, reader in READERS.items():
        if isinstance(module, kind):
            made: WatchedLayer = reader(name, module)
            return made
    kinds = "Linear, Conv2d, Embedding, BatchNorm, LayerNorm, GroupNorm and RMSNorm"
    raise LayerError(f"layer {name!r} is a {type(module).__name__}, which cannot be watched; supported are {kinds}")


__all__ = ["READERS", "WatchedLayer", "is_supported", "watch"]
