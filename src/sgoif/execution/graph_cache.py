"""What a monitor does over and over in the same way, repeated from CUDA graphs.

Captured are the scoring of a block of steps and, where the head alone is watched, the learning from a step: what comes
often enough to matter. Everything else is done plainly, and so is what comes in a shape of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sgoif.curvature.base import Curvature, Factors
from sgoif.curvature.kfac import KFAC
from sgoif.device.cuda_graph import CapturedWork
from sgoif.engine.work_runner import Parts, Result, WorkRunner
from sgoif.scoring.ledger import Ledger
from sgoif.scoring.step_batch import Observation, group_tensors, stack_steps

MOST_RESPONSES = 2**14
"""Numbers that scoring forms for every example; a graph keeps the memory for them, a plain block gives it back."""


class GraphCache(WorkRunner):
    """The CUDA graphs of one monitor, whose parts are given to each call: they must not be kept alive by it."""

    def __init__(self, device: torch.device) -> None:
        self.blocks: CapturedWork[Any] = CapturedWork(device)
        self.updates: CapturedWork[None] = CapturedWork(device)

    @property
    def repeats_blocks(self) -> bool:
        return not self.blocks.broken

    def run_block(
        self, parts: Parts, work: Callable[[list[Tensor]], Result], ledger: Ledger, written: Sequence[Tensor]
    ) -> Result:
        key = (len(parts[0]), *_kinds(parts), *_data_ptrs(written), *ledger.data_ptrs())
        found: Result = self.blocks.run(key, parts, work)
        return found

    def run_update(
        self,
        curvature: Curvature,
        step: Observation,
        observe: Callable[[Observation], Factors],
        written: Sequence[Tensor],
    ) -> None:
        if not isinstance(curvature, KFAC) or not curvature.ready:
            super().run_update(curvature, step, observe, written)
            return
        places, parts = group_tensors([step])

        def work(tensors: list[Tensor]) -> None:
            curvature.fold([observe(stack_steps(places, tensors, step.indices))])

        key = (*_kinds(parts), *_data_ptrs(written), *curvature.data_ptrs())
        curvature.updating(lambda: self.updates.run(key, parts, work))


def _kinds(parts: Sequence[Sequence[Tensor]]) -> tuple[object, ...]:
    return tuple((part[0].shape, part[0].dtype) for part in parts)


def _data_ptrs(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in tensors)
