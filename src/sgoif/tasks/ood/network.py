"""What a trained network says about a batch of inputs, taken from one forward pass.

    logits     what it answers, [n, classes]
    features   what goes into its head, the linear layer that gives the answer, [n, D]
    stages     what comes out of its body at a few depths, [n, D_l, positions…]

A stage is the last thing computed at a given size: for a convolutional network the last map of every resolution, for a
transformer the tokens after each quarter of its blocks. A network without either, such as a perceptron, has no stages.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.errors import LayerError
from sgoif.tracking.evaluation import forward
from sgoif.tracking.head_detection import bare, find_head

EXPLORED = 3
"""Inputs that modules are looked at with: a batch that can be told from other axes."""
TOKEN_STAGES = 4
"""Depths at which a transformer is looked at."""


@dataclass(frozen=True)
class Seen:
    """A batch as the network saw it; everything float32 and without a graph."""

    images: Tensor
    """As they were given to the network."""
    logits: Tensor
    features: Tensor
    stages: tuple[Tensor, ...]
    """[n, D_l, H_l, W_l] of maps, [n, D_l, T] of tokens."""

    def __len__(self) -> int:
        return len(self.logits)

    @cached_property
    def pooled(self) -> tuple[Tensor, ...]:
        """Mean of every stage over its positions, [n, D_l]."""
        return tuple(map(pooled, self.stages))


def pooled(stage: Tensor) -> Tensor:
    """Mean over positions, [n, D, …] to [n, D]."""
    return stage.mean(tuple(range(2, stage.dim())))


class Network:
    """A classifier in evaluation mode with places to look at.

    `example` is a batch as the network takes it, one image is enough; it is used to find the head and the stages, and
    not needed where both are given by the names of their modules. The network is left in evaluation mode. What
    torch.compile or parallel training put around it is left aside, and the names of modules are those of the network.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Tensor | None = None,
        stages: Sequence[str] | None = None,
        head: str | None = None,
    ) -> None:
        self.model = model = bare(model.eval())
        self.head_name = _head(model, example) if head is None else head
        calls = [] if example is None or stages is not None else _calls(model, example)
        known = dict(model.named_modules())
        self._norms_channels = any(isinstance(part, nn.LayerNorm) for part in known.values())
        self.stages = tuple(_stages(calls, self._norms_channels)) if stages is None else tuple(stages)
        if unknown := [name for name in (self.head_name, *self.stages) if name not in known]:
            raise LayerError(f"the model has no modules {', '.join(unknown)}; it has {', '.join(filter(None, known))}")
        found = known[self.head_name]
        if not isinstance(found, nn.Linear):
            raise LayerError(f"the head {self.head_name!r} is a {type(found).__name__}; a linear layer is needed")
        self.head = found
        self._watched = {name: known[name] for name in (*self.stages, self.head_name)}
        self._parts = list(known.values())

    @property
    def entry(self) -> Tensor | None:
        """A parameter that lies where inputs must lie and has their precision."""
        return next(self.model.parameters(), None)

    @property
    def classes(self) -> int:
        """Number of classes, the outputs of the head."""
        return int(self.head.weight.shape[0])

    @property
    def is_training(self) -> bool:
        """Whether any part of it is not in evaluation mode."""
        return any(part.training for part in self._parts)

    @torch.no_grad()
    def see(self, images: Tensor, stages: bool = True) -> Seen:
        """One forward pass. Without `stages`, none are kept. Other threads may use the network meanwhile."""
        found: dict[nn.Module, Tensor] = {}
        me = get_ident()

        def keep(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if get_ident() == me:
                found[module] = inputs[0] if module is self.head else output

        watched = self._watched if stages else {self.head_name: self.head}
        # Registering hooks takes twenty times as long; no other hook has this key.
        hooks = [module._forward_hooks for module in watched.values()]  # noqa: SLF001
        mine = -id(found)
        for each in hooks:
            each[mine] = keep
        try:
            logits = forward(self.model, images)
        finally:
            for each in hooks:
                each.pop(mine, None)
        if unused := [name for name, module in watched.items() if module not in found]:
            raise LayerError(
                f"{', '.join(unused)} had no part in the answer to these inputs: the model changed its path, or parts"
                " of it were exchanged since it was looked at first"
            )
        *maps, features = (found[module] for module in watched.values())
        if logits.dim() == 1:
            logits = logits.unsqueeze(1)
        if logits.dim() != 2 or len(logits) != len(images):
            raise LayerError(f"{len(images)} inputs gave answers of shape {list(logits.shape)}, not a row for each")
        kept = tuple(_positions_last(stage.float(), self._norms_channels) for stage in maps)
        return Seen(images, logits.float(), features.float(), kept)


@dataclass(frozen=True)
class _Call:
    """One use of a module in the forward pass."""

    name: str
    kind: type[nn.Module]
    output: torch.Size
    container: bool


def _head(model: nn.Module, example: Tensor | None) -> str:
    if example is None:
        raise LayerError(
            f"the head of {type(model).__name__} can be found from an example alone: give one, or its name"
        )
    head, _ = find_head(model, lambda: forward(model, example))
    head.require_rows()
    return head.name


def _calls(model: nn.Module, example: Tensor) -> list[_Call]:
    """Modules with a tensor as output, in the order in which they finish.

    Of one that is used several times (an activation that layers share) only the last output could be kept; and the
    first axis must be the batch, which it is not in a transformer that has its tokens first.
    """
    calls: list[_Call] = []

    def note(name: str, module: nn.Module) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor):
                calls.append(_Call(name, type(module), output.shape, any(True for _ in module.children())))

        return hook

    some = torch.cat([example[:1]] * EXPLORED)
    with ExitStack() as hooks, torch.no_grad():
        for name, module in model.named_modules():
            if name:
                hooks.enter_context(module.register_forward_hook(note(name, module)))
        forward(model, some)
    often = Counter(call.name for call in calls)
    return [call for call in calls if often[call.name] == 1 and call.output[:1] == (EXPLORED,)]


def _stages(calls: Sequence[_Call], norms_channels: bool) -> list[str]:
    sides = [(_sides(call.output, norms_channels), call.name) for call in calls if len(call.output) == 4]
    maps = {size: name for size, name in sides if max(size) > 1}
    if len(maps) > 1 or not (tokens := _token_blocks(calls)):
        return list(maps.values())
    at = [round((number + 1) * len(tokens) / TOKEN_STAGES) - 1 for number in range(TOKEN_STAGES)]
    return list(dict.fromkeys(tokens[max(0, position)] for position in at))


def _token_blocks(calls: Sequence[_Call]) -> list[str]:
    """The repeated blocks of a transformer: siblings of one kind and one output shape, in order."""
    groups: dict[tuple[str, type[nn.Module], torch.Size], list[str]] = {}
    for call in calls:
        if len(call.output) == 3 and call.container:
            parent = call.name.rpartition(".")[0]
            groups.setdefault((parent, call.kind, call.output), []).append(call.name)
    return max(groups.values(), key=len, default=[])


def _channels_last(shape: torch.Size, norms_channels: bool) -> bool:
    """Whether a map is [n, H, W, D], as networks with layer normalisation may have it; told by its square."""
    return norms_channels and shape[1] == shape[2] != shape[3]


def _sides(shape: torch.Size, norms_channels: bool) -> torch.Size:
    """H and W of a map."""
    return shape[1:3] if _channels_last(shape, norms_channels) else shape[2:]


def _positions_last(stage: Tensor, norms_channels: bool) -> Tensor:
    """Maps as [n, D, H, W]; tokens [n, T, D] as [n, D, T]."""
    if stage.dim() == 4:
        return stage.movedim(3, 1) if _channels_last(stage.shape, norms_channels) else stage
    return stage.transpose(1, 2)
