"""A function that is made of many small operations, started on a GPU as one.

A GPU does a small operation in less time than the host needs to tell it so. Operations that come again and again are
therefore recorded (a CUDA graph) and from then on started together. A recording reads its tensors where they lay when
it was made. Memory is given out in the same order by every forward pass over batches of one size, so most often they
lie there again, and nothing has to be copied: that is recorded *in place*. For tensors that lie elsewhere there is a
second recording, of what follows once they have been brought side by side. On other devices, and for any other number
of rows, operations are started one by one; the figures are the same.
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
"""Calls of one kind before these are recorded."""
MOST = 4
"""Recordings of each sort that are kept; each has its own memory on the GPU."""
IN_ALL = 32
"""Recordings of each sort that are ever made: one takes as long as many calls."""
LARGEST = 2**22
"""Values in the rows of a recording: with more, operations are not small, and the memory would be large."""


class Steps(Protocol):
    """A function of images and of tensors that a network made of them, with a row for each image."""

    def look(self, images: Tensor, out: Tensor | None = None) -> Tensor:
        """What is needed of the images, which may lie anywhere, [n]."""

    def columns(self, made: Sequence[Tensor], looked: Tensor) -> list[Tensor]:
        """What is needed of both, [n, …] each."""

    def __call__(self, rows: Tensor) -> Tensor:
        """The result, [n], of those columns side by side."""


class Recorded:
    """The same function, recorded where that is possible; its result has nothing to do with earlier calls."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self._in_place = _Shelf()
        self._copied = _Shelf()
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Recorded, (self.steps,)

    def __call__(self, images: Tensor, made: Sequence[Tensor]) -> Tensor:
        """The function of these images and of what the network made of them."""
        if not can_record(images.device):
            return self.steps(torch.cat(self.steps.columns(made, self.steps.look(images)), 1))
        stream = torch.cuda.current_stream(images.device).cuda_stream
        place = (stream, *[(each.data_ptr(), each.shape, each.stride(), each.dtype) for each in made])
        with self._lock:
            if (recording := self._in_place.get(place)) is None:
                return self._elsewhere(images, made, place, (stream, len(images)))
            self.steps.look(images, out=recording.given)
            return recording.replayed()

    def _elsewhere(self, images: Tensor, made: Sequence[Tensor], place: Hashable, size: Hashable) -> Tensor:
        steps = self.steps
        looked = steps.look(images)
        columns = steps.columns(made, looked)
        if (recording := self._copied.get(size)) is not None:
            rows = torch.cat(columns, 1, out=recording.given)
            result = recording.replayed()
        else:
            rows = torch.cat(columns, 1)
            result = steps(rows)
        if rows.numel() > LARGEST:
            return result
        if self._in_place.wants(place):
            self._in_place.keep(place, record(lambda given: steps(torch.cat(steps.columns(made, given), 1)), looked))
        elif self._copied.wants(size):
            self._copied.keep(size, record(steps, rows))
        return result


def can_record(device: torch.device) -> bool:
    """Whether this is a GPU, and nobody else is recording what it does."""
    return device.type == "cuda" and not torch.cuda.is_current_stream_capturing()


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    given: Tensor
    """Where its input must lie."""
    result: Tensor

    def replayed(self) -> Tensor:
        self.graph.replay()
        return self.result.clone()


class _Shelf:
    """Recordings by what they are good for; the one that was not asked for longest makes room for another."""

    def __init__(self) -> None:
        self.kept: dict[Hashable, _Recording | None] = {}
        self._calls: Counter[Hashable] = Counter()
        self._made = 0

    def get(self, key: Hashable) -> _Recording | None:
        if key not in self.kept:
            return None
        found = self.kept[key] = self.kept.pop(key)
        return found

    def wants(self, key: Hashable) -> bool:
        """Whether this came often enough, and has not been tried in vain."""
        if key in self.kept or self._made >= IN_ALL:
            return False
        if len(self._calls) > 2 * IN_ALL:
            self._calls.clear()
        self._calls[key] += 1
        return self._calls[key] > AFTER

    def keep(self, key: Hashable, recording: _Recording | None) -> None:
        self._made += 1
        del self._calls[key]
        if len(self.kept) >= MOST:
            del self.kept[next(iter(self.kept))]
        self.kept[key] = recording


def record(function: Callable[[Tensor], Tensor], given: Tensor) -> _Recording | None:
    """The function as it works on this tensor, with which it must have been called before; None where it cannot be."""
    try:
        with torch.inference_mode(False), torch.no_grad():
            own = given.clone()
            torch.cuda.synchronize(given.device)
            graph, result = captured(given.device, lambda: function(own))
    except RuntimeError:
        return None
    return _Recording(graph, own, result)
