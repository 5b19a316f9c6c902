"""Which layers are watched: those that ran, by their place in the model, by name or by pattern."""

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sgoif.core.logits import same
from sgoif.errors import LayerError, some_of
from sgoif.tracking.hooks import OwnHook
from sgoif.tracking.layers import WatchedLayer, is_supported, watch


class Call(NamedTuple):
    """A layer that ran: its name, the module, the shape of its output, and whether that is what the model answers."""

    name: str
    module: nn.Module
    shape: torch.Size
    answers: bool = False


_MAPS = (nn.Conv2d, nn.BatchNorm2d, nn.GroupNorm)
_NUMBERED = re.compile(r".*?\d(?=\.|$)")


def trace(model: nn.Module, run: Callable[[], Tensor]) -> tuple[list[Call], Tensor]:
    """Supported modules in the order in which `run` calls them, and the logits that it returns."""
    ran: list[tuple[Call, Tensor]] = []

    def recorder(name: str) -> Callable[..., None]:
        @OwnHook
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                ran.append((Call(name, module, output.shape), output.detach()))

        return hook

    supported = [(name, module) for name, module in model.named_modules() if is_supported(module)]
    handles = [module.register_forward_hook(recorder(name)) for name, module in supported]
    try:
        logits = run()
    finally:
        for handle in handles:
            handle.remove()
    return [call._replace(answers=same(output, logits)) for call, output in ran], logits


def choose_layers(calls: Sequence[Call], layers: str | Sequence[str], classes: int, batch: int) -> list[WatchedLayer]:
    """The watched layers, in the order of the forward pass, the head last.

    "head" is the last linear layer that ran, in a model with several heads that whose output is the answer (or, in an
    all-convolutional net, the last convolution with one channel per class); "last-stage" adds what ran from the final
    resolution of a convolutional net on, or in the last block of another; "all" is every supported layer; anything else
    is a name or a pattern such as "layer4.*". Layers whose output does not have the batch of `batch` examples on its
    first axis (an embedding of positions, a layer that sees the tokens of all examples in one row) have no gradient of
    single examples and are left out.
    """
    shared = {call.name for call in calls if not call.shape or call.shape[0] != batch}
    calls = [call for call in calls if call.name not in shared]
    ran = {call.name: call.module for call in calls}
    head = _head(calls, classes)
    if layers == "head":
        chosen = [head] if head is not None else []
    elif layers == "last-stage":
        chosen = _last_stage(calls, head) if head is not None else []
    elif layers == "all":
        chosen = list(ran)
    else:
        patterns = [layers] if isinstance(layers, str) else list(layers)
        chosen = [name for name in ran if any(fnmatchcase(name, pattern) for pattern in patterns)]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in ran):
                raise LayerError(
                    f"no layer that can be watched matches {pattern!r}. Layers of this model: {some_of(list(ran))}"
                    f"{_left_out(shared)}"
                )
    if not chosen:
        raise LayerError(
            "no layer to watch was found: the model ran no trainable Linear, Conv2d, Embedding or normalisation layer"
            f" that fits layers={layers!r}. Layers it ran: {some_of(list(ran))}{_left_out(shared)}. Unfreeze the head"
            " (requires_grad_(True)) or name layers with layers=[...]"
        )
    counts = {name: sum(call.name == name for call in calls) for name in chosen}
    twice = [name for name in chosen if counts[name] > 1]
    if twice:
        raise LayerError(
            f"layer {twice[0]!r} is used {counts[twice[0]]} times in one forward pass; shared layers cannot be watched."
            " Name other layers with layers=[...]"
        )
    # Monitors take the last layer for the head; in a model with several of them another may have run after it.
    ordered = sorted((name for name in ran if name in set(chosen)), key=lambda name: name == head)
    return [watch(name, ran[name]) for name in ordered]


def _head(calls: Sequence[Call], classes: int) -> str | None:
    linear = [call for call in calls if isinstance(call.module, nn.Linear)]
    if linear:
        return ([call for call in linear if call.answers] or linear)[-1].name
    conv = [call.name for call in calls if isinstance(call.module, nn.Conv2d) and call.module.out_channels == classes]
    return conv[-1] if conv else None


def _last_stage(calls: Sequence[Call], head: str) -> list[str]:
    names = [call.name for call in calls]
    before = calls[: names.index(head)]
    if not before:
        return [head]
    maps = [call.shape[2:] if isinstance(call.module, _MAPS) and len(call.shape) == 4 else None for call in before]
    last = max((number for number, size in enumerate(maps) if size is not None), default=-1)
    if last >= 0 and all(len(call.shape) == 2 for call in before[last + 1 :]):
        return [before[n].name for n, size in enumerate(maps) if size == maps[last] or n > last] + [head]
    # Without feature maps: the outermost numbered part of the last layer that has one, such as "blocks.11".
    prefixes = [match.group() for call in before if (match := _NUMBERED.match(call.name))]
    prefix = prefixes[-1] if prefixes else before[-1].name
    own = {prefix, before[-1].name}
    return [call.name for call in before if call.name in own or call.name.startswith(prefix + ".")] + [head]


def _left_out(shared: set[str]) -> str:
    if not shared:
        return ""
    return f" (left out, because the first axis of their output is not the batch: {some_of(sorted(shared))})"
