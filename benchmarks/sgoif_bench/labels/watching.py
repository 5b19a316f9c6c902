"""Monitors beside a training of a benchmark, as a user would have them: the whole hold-out is the bank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.monitor import InfluenceMonitor
from sgoif_bench.labels.problem import Problem


def watch(
    problem: Problem, model: nn.Module, optimizer: torch.optim.Optimizer, held_out: Any, **settings: Any
) -> InfluenceMonitor:
    """A monitor with all of the hold-out as anchors; `settings` are further ones of the engine."""
    size, anchors = len(problem), len(held_out)
    return InfluenceMonitor(
        model, optimizer, anchors=held_out, size=size, max_anchors=anchors, seed=problem.seed, **settings
    )


def together(monitors: Collection[InfluenceMonitor]) -> Callable[[Tensor], AbstractContextManager[None]]:
    """What goes around a step that several monitors watch."""

    @contextmanager
    def watching(index: Tensor) -> Iterator[None]:
        with ExitStack() as steps:
            for monitor in monitors:
                steps.enter_context(monitor.step(index))
            yield

    return watching
