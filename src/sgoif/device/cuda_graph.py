"""Work for a GPU that is told to it once and repeated by one call (a CUDA graph).

Telling a GPU to do something takes the host longer than the GPU takes to do it when tensors are small, and longer still
when that kind of work comes seldom. Work that is always the same but for the numbers is captured when it comes for the
second time: the first time has loaded what it needs.

A graph holds addresses, not tensors. What changes from call to call is copied to a place of its own; everything
else that the work reads or writes must stay where it was, and the key of a call says whether it did. Python code runs
only while the work is captured, so the work must change nothing but tensors.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from sgoif.device.timing import forget_workspaces

MOST_FORMS = 4
"""Forms of one piece of work that are kept; the one that was not asked for longest makes room."""

_capturing = Lock()
Result = TypeVar("Result")
Work = Callable[[list[Tensor]], Result]


class CapturedGraph(NamedTuple, Generic[Result]):
    """A graph: where its inputs lie, how it is repeated, and what it gave (the same tensors every time)."""

    inputs: list[Tensor]
    repeat: Callable[[], None]
    result: Result


class CapturedWork(Generic[Result]):
    """One piece of work on one device, in as many forms as come again and again: blocks of several sizes, say."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.forms: dict[Hashable, CapturedGraph[Result] | None] = {}
        """None: came once; the one that came last stands last."""
        self.broken = False
        """Whether this work could not be captured; it is then done as if there were no graph."""

    def run(self, key: Hashable, parts: Sequence[Sequence[Tensor]], work: Work[Result]) -> Result:
        """Do the work on the `parts`, each put together along its first axis. Results may lie where the last ones lay.

        The key stands for all else that the work depends on: shapes and types, and where other tensors lie.
        """
        if self.broken or key not in self.forms:
            self._keep(key, None)
            return work([joined(part) for part in parts])
        graph = self.forms[key]
        if graph is None:
            inputs = [torch.cat(list(part)) for part in parts]
            try:
                graph = capture_graph(self._device, inputs, work)
            except RuntimeError:
                self.broken = True
                self.forms.clear()
                return work(inputs)
        else:
            for part, place in zip(parts, graph.inputs, strict=True):
                torch.cat(list(part), out=place)
        self._keep(key, graph)
        graph.repeat()
        return graph.result

    def _keep(self, key: Hashable, graph: CapturedGraph[Result] | None) -> None:
        self.forms.pop(key, None)
        self.forms[key] = graph
        while len(self.forms) > MOST_FORMS:
            del self.forms[next(iter(self.forms))]


def joined(part: Sequence[Tensor]) -> Tensor:
    """Tensors put together along their first axis; one alone is not copied."""
    return part[0] if len(part) == 1 else torch.cat(list(part))


def capture_graph(device: torch.device, inputs: list[Tensor], work: Work[Result]) -> CapturedGraph[Result]:
    """Note down what the work asks of the GPU, without doing it."""
    stream, current = capture_stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(current)
    graph, result = captured(device, lambda: work(inputs))
    current.wait_stream(stream)
    forget_workspaces()
    return CapturedGraph(inputs, graph.replay, result)


def captured(device: torch.device, work: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
    """What the work asks of the GPU, without doing it, and where its result will lie; one at a time.

    torch.cuda.graph would do the same and give unused memory back first, after which nothing lies where it lay.
    """
    graph = torch.cuda.CUDAGraph()
    with _capturing, torch.cuda.device(device), torch.cuda.stream(capture_stream(device)), _without_collection():
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
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream to capture on: one for all graphs, since each stream has a working memory of its own."""
    return torch.cuda.Stream(device)
