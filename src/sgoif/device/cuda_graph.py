"""Work for a GPU that is told to it once and repeated by one call (a CUDA graph).

Telling a GPU to do something takes the host longer than the GPU takes to do it when tensors are small. A graph holds
addresses, not tensors: whatever the work reads or writes must stay where it was. Python code runs only while the work
is captured, so the work must change nothing but tensors.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import TypeVar

import torch

_capturing = Lock()
Result = TypeVar("Result")


def captured(device: torch.device, work: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
    """What the work asks of the GPU, without doing it, and where its result will lie; one at a time.

    torch.cuda.graph would do the same and give unused memory back first, after which nothing lies where it lay.
    """
    graph = torch.cuda.CUDAGraph()
    with _capturing, torch.cuda.device(device), torch.cuda.stream(_capture_stream(device)), _without_collection():
        # Other threads, such as one that pins batches, go on meanwhile.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            result = work()
        finally:
            graph.capture_end()
    return graph, result


@contextmanager
def _without_collection() -> Iterator[None]:
    """Garbage that holds things of the GPU must not be collected while work is noted down."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream to capture on: one for all graphs, since each stream has a working memory of its own."""
    return torch.cuda.Stream(device)
