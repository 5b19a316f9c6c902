"""Running a model beside its training: in evaluation mode, and back to exactly what was."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from sgoif.core.interrupts import register, unregister
from sgoif.core.logits import extract_logits
from sgoif.errors import AnchorError

REENTRANT = checkpoint.CheckpointFunction


class NoCheckpoint:
    """In the place of checkpoints with `use_reentrant=True`, which would cut the graph of a pass over anchors."""

    @staticmethod
    def apply(function: Callable[..., Any], _: bool, *args: Any) -> Any:
        """Run a part of a model once, as if it were not checkpointed."""
        return function(*args)


class evaluation:
    """Evaluation mode without calling anybody's `train()`, and back to exactly what was."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = list(model.modules())

    def __enter__(self) -> None:
        # The fast path of nn.TransformerEncoder has tensors of its own, which no hook can look at.
        self.fast = torch.backends.mha.get_fastpath_enabled()
        self.training = [m.training for m in self.modules]
        register(self.restore)
        torch.backends.mha.set_fastpath_enabled(False)
        vars(checkpoint)["CheckpointFunction"] = NoCheckpoint
        for m in self.modules:
            m.training = False

    def __exit__(self, *_: object) -> None:
        self.restore()
        unregister(self.restore)

    def restore(self) -> None:
        """Back to what was."""
        torch.backends.mha.set_fastpath_enabled(self.fast)
        vars(checkpoint)["CheckpointFunction"] = REENTRANT
        for m, training in zip(self.modules, self.training, strict=True):
            m.training = training


def forward(model: nn.Module, inputs: Any) -> Tensor:
    """Logits of the model, never through a compiled graph: anchor batches have other shapes and hooks."""
    compiled = getattr(model, "_compiled_call_impl", None) is not None
    call = model._call_impl if compiled else model
    output = cast(Any, call)(**inputs) if isinstance(inputs, dict) else cast(Any, call)(inputs)
    logits = extract_logits(output)
    if logits is None:
        raise AnchorError(f"the model returned {type(output).__name__}; expected logits, a tuple or a field `logits`")
    return logits
