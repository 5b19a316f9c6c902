"""Work in full precision, whatever mode the training loop is in."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from sgoif.core.interrupts import TorchModes

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def full_precision(
    method: Callable[Concatenate[Any, Arguments], Result],
) -> Callable[Concatenate[Any, Arguments], Result]:
    """Run a method (of an object with a `device`) without autograd and without autocast.

    Training loops call in from inside `torch.autocast`, which would silently turn float32 products into bfloat16.
    """

    @functools.wraps(method)
    def wrapped(self: Any, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not torch.is_grad_enabled() and not torch.is_autocast_enabled(self.device.type):
            return method(self, *args, **kwargs)  # called from another such method
        modes = TorchModes(self.device.type)
        try:
            torch.set_grad_enabled(False)
            torch.set_autocast_enabled(modes.kind, False)
            return method(self, *args, **kwargs)
        finally:
            modes.restore()

    return wrapped
