"""The score as CUDA graphs: a function of many small operations, launched on a GPU as one.

A GPU does a small operation in less time than the host needs to launch it. Operations that are repeated are therefore
captured in a CUDA graph and from then on launched together. A graph reads its tensors at the addresses that they had
when it was captured. Every forward pass over batches of one size allocates memory in the same order, so most often
tensors have these addresses again and nothing is copied: such a graph works *in place*. For tensors at other addresses
there is a second graph, of what follows once they have been copied side by side. On other devices, and for any other
number of rows, operations are launched one by one; the figures are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

import torch
from torch import Tensor

from sgoif.device.cuda_graph import captured

AFTER = 2
"""Calls of one kind before they are captured."""
MOST = 4
"""Graphs of each sort that are kept; each has its own memory on the GPU."""
MOST_CAPTURES = 32
"""Graphs of each sort that are ever captured: one takes as long as many calls."""
LARGEST = 2**22
"""Values in the rows of a graph: with more, operations are not small, and the memory would be large."""


class ScoreSteps(Protocol):
    """A function of images and of tensors that a network made of them, with a row for each image."""

    def largest_values(self, images: Tensor, out: Tensor | None = None) -> Tensor:
        """What is needed of the images, which may lie anywhere, [n]."""

    def feature_columns(self, made: Sequence[Tensor], largest: Tensor) -> list[Tensor]:
        """What is needed of both, [n, …] each."""

    def __call__(self, rows: Tensor) -> Tensor:
        """The result, [n], of those columns side by side."""


class GraphedScore:
    """The same function, captured where that is possible; no later call changes a result."""

    def __init__(self, steps: ScoreSteps) -> None:
        self.steps = steps
        self._in_place = _GraphCache()
        self._copied = _GraphCache()
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphedScore, (self.steps,)

    def __call__(self, images: Tensor, made: Sequence[Tensor]) -> Tensor:
        """The function of these images and of what the network made of them."""
        if not can_capture(images.device):
            return self.steps(torch.cat(self.steps.feature_columns(made, self.steps.largest_values(images)), 1))
        stream = torch.cuda.current_stream(images.device).cuda_stream
        place = (stream, *[(each.data_ptr(), each.shape, each.stride(), each.dtype) for each in made])
        with self._lock:
            if (graph := self._in_place.get(place)) is None:
                return self._run_elsewhere(images, made, place, (stream, len(images)))
            self.steps.largest_values(images, out=graph.given)
            return graph.replay()

    def _run_elsewhere(self, images: Tensor, made: Sequence[Tensor], place: Hashable, size: Hashable) -> Tensor:
        steps = self.steps
        largest = steps.largest_values(images)
        columns = steps.feature_columns(made, largest)
        if (graph := self._copied.get(size)) is not None:
            rows = torch.cat(columns, 1, out=graph.given)
            result = graph.replay()
        else:
            rows = torch.cat(columns, 1)
            result = steps(rows)
        if rows.numel() > LARGEST:
            return result
        if self._in_place.wants(place):
            self._in_place.keep(
                place, capture(lambda given: steps(torch.cat(steps.feature_columns(made, given), 1)), largest)
            )
        elif self._copied.wants(size):
            self._copied.keep(size, capture(steps, rows))
        return result


def can_capture(device: torch.device) -> bool:
    """Whether this is a GPU, and nobody else is capturing what it does."""
    return device.type == "cuda" and not torch.cuda.is_current_stream_capturing()


@dataclass(frozen=True)
class _CapturedGraph:
    graph: torch.cuda.CUDAGraph
    given: Tensor
    """Where its input must lie."""
    result: Tensor

    def replay(self) -> Tensor:
        self.graph.replay()
        return self.result.clone()


class _GraphCache:
    """Graphs by the tensors that they work for; the least recently used one makes room for another."""

    def __init__(self) -> None:
        self.kept: dict[Hashable, _CapturedGraph | None] = {}
        self._calls: Counter[Hashable] = Counter()
        self._made = 0

    def get(self, key: Hashable) -> _CapturedGraph | None:
        if key not in self.kept:
            return None
        found = self.kept[key] = self.kept.pop(key)
        return found

    def wants(self, key: Hashable) -> bool:
        """Whether this came often enough, and has not been tried in vain."""
        if key in self.kept or self._made >= MOST_CAPTURES:
            return False
        if len(self._calls) > 2 * MOST_CAPTURES:
            self._calls.clear()
        self._calls[key] += 1
        return self._calls[key] > AFTER

    def keep(self, key: Hashable, graph: _CapturedGraph | None) -> None:
        self._made += 1
        del self._calls[key]
        if len(self.kept) >= MOST:
            del self.kept[next(iter(self.kept))]
        self.kept[key] = graph


def capture(function: Callable[[Tensor], Tensor], given: Tensor) -> _CapturedGraph | None:
    """The function captured on this tensor, with which it must have been called before; None where that fails."""
    try:
        with torch.inference_mode(False), torch.no_grad():
            own = given.clone()
            torch.cuda.synchronize(given.device)
            graph, result = captured(given.device, lambda: function(own))
    except RuntimeError:
        return None
    return _CapturedGraph(graph, own, result)
