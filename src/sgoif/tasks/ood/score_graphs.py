"""The score as CUDA graphs: a function of many small operations, launched on a GPU as one.

A GPU does a small operation in less time than the host needs to launch it. Once batches of one size have come a few
times, what follows the pooling is therefore captured in a CUDA graph and from then on launched together. A graph reads
its input where that lay when it was captured, so each batch is copied there. On other devices, and for any other number
of rows, operations are launched one by one; the figures are the same.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sgoif.tasks.ood.ood_score import OodScore

AFTER = 2
"""Calls of one kind before they are captured."""
MOST = 4
"""Graphs that are kept; each has its own memory on the GPU."""
MOST_CAPTURES = 32
"""Graphs that are ever captured: one takes as long as many calls."""
LARGEST = 2**22
"""Values in the rows of a graph: with more, operations are not small, and the memory would be large."""
_one_at_a_time = Lock()
"""All captures use one stream, and the input of a graph must stay as it is until that is replayed."""


class Graph(NamedTuple):
    """The function captured for one number of rows."""

    replay: Any
    rows: Tensor
    """Where its input must lie."""
    result: Tensor


class GraphedScore:
    """The same function, captured where that is possible; no later call changes a result."""

    def __init__(self, steps: OodScore) -> None:
        self.steps = steps
        self.kept: dict[Hashable, Graph | None] = {}
        """By stream and number of rows; the least recently used one makes room for another. None: cannot be had."""
        self._calls: Counter[Hashable] = Counter()
        self._captures = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphedScore, (self.steps,)

    def __call__(self, images: Tensor, made: Sequence[Tensor]) -> Tensor:
        """The function of these images and of what the network made of them."""
        columns = self.steps.columns(images, made)
        if not can_capture(images.device):
            return self.steps(torch.cat(columns, 1))
        key = torch.cuda.current_stream(images.device).cuda_stream, len(images)
        with _one_at_a_time:
            if (graph := self.kept.get(key)) is not None:
                self.kept[key] = self.kept.pop(key)
                torch.cat(columns, 1, out=graph.rows)
                graph.replay()
                return graph.result.clone()
            rows = torch.cat(columns, 1)
            result = self.steps(rows)
            if self._wanted(key, rows):
                self._keep(key, capture(self.steps, rows))
            return result

    def _wanted(self, key: Hashable, rows: Tensor) -> bool:
        """Whether this came often enough, and has not been tried in vain."""
        if key in self.kept or self._captures >= MOST_CAPTURES or rows.numel() > LARGEST:
            return False
        if len(self._calls) > 2 * MOST_CAPTURES:
            self._calls.clear()
        self._calls[key] += 1
        return self._calls[key] > AFTER

    def _keep(self, key: Hashable, graph: Graph | None) -> None:
        self._captures += 1
        del self._calls[key]
        if len(self.kept) >= MOST:
            del self.kept[next(iter(self.kept))]
        self.kept[key] = graph


def can_capture(device: torch.device) -> bool:
    """Whether this is a GPU, and nobody else is capturing what it does."""
    return device.type == "cuda" and not torch.cuda.is_current_stream_capturing()


def capture(steps: OodScore, rows: Tensor) -> Graph | None:
    """The function captured for such rows, with which it must have been called before; None where that fails."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(rows.device):
            own = rows.clone()
            # Other threads, such as one that pins batches, go on meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                result = steps(own)
    except RuntimeError:
        return None
    return Graph(graph.replay, own, result)
