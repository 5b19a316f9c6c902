"""A look at the head in passing: what a deferred step leaves behind, taken in as few moves as can be.

Between two steps of training little of our code is in the processor's caches, and what is called there takes several
times as long as the same a moment later. So of a step that is as expected (one pass forward, one backward, and the
model answers with what the head gave) only references are kept, no function of ours is called by the backward pass, no
memory is asked for, and a block of steps is looked through later. Layers below the head that are scored in the step
have a `PassRecord` beside it. In place of any other step `Capture` fills a full one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sgoif.core.types import Indices
    from sgoif.tracking.pass_record import PassRecord


@dataclass(slots=True, eq=False)
class HeadSnapshot:
    """Input, output and output gradient of the head in one step."""

    differentiate: ClassVar[bool] = True
    indices: Tensor
    shape: tuple[int, int]
    """Examples and classes."""
    learning: bool
    body: PassRecord | None = None
    """What is seen of layers below the head, while the snapshot is open."""
    response: Tensor | None = None
    """What they say, once it is closed."""
    inputs: Tensor | None = None
    output: Tensor | None = None
    gradient: Tensor | None = None
    """Known once the snapshot is closed, unless the output was overwritten in the step."""
    target: Tensor | None = None
    label: Tensor | None = None
    version: int = 0
    """How often the output had been overwritten when it was last looked at."""

    def sees(self, args: tuple[Any, ...], output: Any) -> bool:
        """Keep what the head was given and what it gave; False, and nothing kept, if that is not as expected."""
        if self.output is not None or type(output) is not Tensor or not output.requires_grad:
            return False
        inputs = args[0] if args else None
        if type(inputs) is not Tensor or not inputs.requires_grad:
            return False
        self.inputs, self.output, self.version = inputs, output, output._version
        output.retain_grad()
        return True

    def is_enough(self, answer: Any) -> bool:
        """Whether the model answers with what the head gave; or else it is too late to look closer."""
        return answer is self.output or (self.output is not None and self.output._version != self.version)

    def close(self) -> bool:
        """Take the gradient and let go of the graph; False, and nothing done, if the step was not as expected."""
        inputs, output = self.inputs, self.output
        if inputs is None or output is None:
            return False
        gradient, version = output.grad, output._version
        if gradient is None or gradient.shape != self.shape:
            return False
        if version == self.version:  # else it is the gradient of what stands there now
            self.gradient = gradient.detach() if gradient.requires_grad else gradient
        self.inputs, self.output = inputs.detach(), output.detach()
        if self.body is not None:
            self.response, self.body = self.body.response, None
        return True


class IndexBuffer:
    """Indices of late steps, in a place of their own: between two steps it takes longer to ask for memory than to copy.

    A copy is needed since a loop may fill its own tensor anew.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._size = 0
        self._rows: Sequence[Tensor] = ()
        self._held: Indices | None = None

    def fit(self, size: int) -> None:
        """Make room for steps of so many examples, while no step is late."""
        if self._size != size:
            whole = torch.empty(self._steps, size, dtype=torch.int64)
            self._size, self._rows, self._held = size, whole.unbind(), whole.numpy()

    def put(self, number: int, index: Tensor) -> Tensor:
        """A copy of these indices, which stays what it is until another comes with the same number."""
        if index.is_cuda or number >= len(self._rows) or index.shape[0] != self._size:
            return index.clone()
        return self._rows[number].copy_(index)

    def keep(self, given: Sequence[Tensor | Indices]) -> list[Tensor | Indices]:
        """The same indices, of which those that were put here from number 0 on stay what they are."""
        if self._held is None:
            return list(given)
        kept = self._held[: len(given)].copy()
        here = len(kept)
        return [kept[k] if k < here and index is self._rows[k] else index for k, index in enumerate(given)]
