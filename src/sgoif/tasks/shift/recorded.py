"""A function that is made of many small operations, started on a GPU as one.

A GPU does a small operation in less time than the host needs to tell it so. For a number of rows that comes again and
again, the operations are therefore recorded (a CUDA graph) and from then on started together. Elsewhere, and for any
other number of rows, they are started one by one; the figures are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

AFTER = 2
"""Calls with the same number of rows before these are recorded."""
MOST = 4
"""Recordings that are kept; each has its own memory on the GPU."""
LARGEST = 2**22
"""Values in the rows of a recording: with more, operations are not small, and the memory would be large."""


class Recorded:
    """A function of rows [n, D] whose result has nothing to do with the values of earlier calls."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function
        self._calls: Counter[tuple[int, int]] = Counter()
        self._recordings: dict[tuple[int, int], _Recording | None] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Recorded, (self.function,)

    def __call__(self, parts: list[Tensor]) -> Tensor:
        """The function of these columns side by side."""
        device, count = parts[0].device, len(parts[0])
        if not can_record(device):
            return self.function(torch.cat(parts, 1))
        key = (count, torch.cuda.current_stream(device).cuda_stream)
        with self._lock, torch.cuda.device(device):
            if (recording := self._recordings.get(key)) is not None:
                return recording.of(parts)
            rows = torch.cat(parts, 1)
            self._calls[key] += 1
            if self._calls[key] > AFTER and self._may_record(key, rows):
                self._recordings[key] = record(self.function, rows)
            return self.function(rows)

    def _may_record(self, key: tuple[int, int], rows: Tensor) -> bool:
        """Whether there is room, and it has not been tried in vain."""
        return key not in self._recordings and len(self._recordings) < MOST and rows.numel() <= LARGEST


def can_record(device: torch.device) -> bool:
    """Whether this is a GPU, and nobody else is recording what it does."""
    return device.type == "cuda" and not torch.cuda.is_current_stream_capturing()


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    rows: Tensor
    result: Tensor

    def of(self, parts: list[Tensor]) -> Tensor:
        torch.cat(parts, 1, out=self.rows)
        self.graph.replay()
        return self.result.clone()


def record(function: Callable[[Tensor], Tensor], rows: Tensor) -> _Recording | None:
    """The function as it works on these rows, which must have been through it before; None where that cannot be."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.inference_mode(False), torch.no_grad():
            rows = rows.clone()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                result = function(rows)
    except RuntimeError:
        return None
    return _Recording(graph, rows, result)
