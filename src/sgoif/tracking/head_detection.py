"""Which layer of a classifier is its head: one rule for everything that asks.

The head is the linear layer whose output is the model's answer. Where something comes after it, such as a temperature,
it is the last linear layer that the answer depends on; where that cannot be told either, the last that ran. Frozen
layers count, and so do layers whose weights are computed from others.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sgoif.core.logits import same
from sgoif.distributed.communicator import unwrapped
from sgoif.errors import LayerError
from sgoif.tracking.hooks import OwnHook


class Head(NamedTuple):
    """The head of a classifier: its name, the layer, and the shape of what it gives."""

    name: str
    layer: nn.Linear
    shape: torch.Size

    def require_rows(self) -> None:
        """Raise where it gives more than one row per input."""
        if len(self.shape) != 2:
            raise LayerError(
                f"the last linear layer {self.name!r} has an output of shape {list(self.shape)}, not one row per input:"
                " pool before the last layer, not after it"
            )


class _Ran(NamedTuple):
    head: Head
    output: Tensor


def bare(model: nn.Module) -> nn.Module:
    """The network inside what was put around it to run it faster or on several devices."""
    inner = unwrapped(model)
    return inner.module if isinstance(inner, nn.DataParallel) else inner


def find_head(model: nn.Module, run: Callable[[], Tensor]) -> tuple[Head, Tensor]:
    """The head, and the logits that `run` returns; it runs the model, a second time where logits are no layer's own."""
    with torch.no_grad():
        ran, logits = _linear(model, run, cut=False)
    if not ran:
        raise LayerError(f"{type(model).__name__} uses no linear layer; its last layer must be one")
    answering = [each for each in ran if same(each.output, logits)]
    if not answering and len(ran) > 1:
        with torch.enable_grad():
            answering = _reached(*_linear(model, run, cut=True))
    return (answering or ran)[-1].head, logits


def _linear(model: nn.Module, run: Callable[[], Tensor], *, cut: bool) -> tuple[list[_Ran], Tensor]:
    """The linear layers that ran and the logits; with `cut`, what comes after a layer sees its output as a leaf."""
    ran: list[_Ran] = []

    def recorder(name: str) -> Callable[..., Tensor | None]:
        @OwnHook
        def hook(module: nn.Linear, _: object, output: Tensor) -> Tensor | None:
            kept = output.detach()
            ran.append(_Ran(Head(name, module, kept.shape), kept.requires_grad_(cut)))
            return kept.clone() if cut else None  # a leaf itself could not be overwritten by what follows

        return hook

    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    handles = [module.register_forward_hook(recorder(name)) for name, module in layers]
    try:
        return ran, run()
    finally:
        for handle in handles:
            handle.remove()


def _reached(ran: list[_Ran], logits: Tensor) -> list[_Ran]:
    """The layers that the logits depend on directly, through no other linear layer."""
    if not logits.requires_grad:
        return []
    gradients = torch.autograd.grad(logits.sum(), [each.output for each in ran], allow_unused=True)
    return [each for each, gradient in zip(ran, gradients, strict=True) if gradient is not None]
