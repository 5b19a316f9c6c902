"""How work on whole blocks is done: at once, unless another runner takes the place of this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from sgoif.curvature.base import Curvature, Factors
from sgoif.scoring.ledger import Ledger
from sgoif.scoring.step_batch import Observation

Result = TypeVar("Result")
Parts = list[list[Tensor]]
"""Tensors of several steps, one list for each that is to be put together."""


class WorkRunner:
    """Does work at once. `execution.graph_cache` repeats it from CUDA graphs instead.

    `written` are the tensors that the work reads or writes besides its arguments and the ledger.
    """

    @property
    def repeats_blocks(self) -> bool:
        """Whether blocks of the same form are repeated."""
        return False

    def run_block(
        self, parts: Parts, work: Callable[[list[Tensor]], Result], ledger: Ledger, written: Sequence[Tensor]
    ) -> Result:
        """What `work` makes of the parts of a block, each put together."""
        del ledger, written
        return work([torch.cat(parts.pop(0)) for _ in range(len(parts))])  # parts are let go of one by one

    def run_update(
        self,
        curvature: Curvature,
        step: Observation,
        observe: Callable[[Observation], Factors],
        written: Sequence[Tensor],
    ) -> None:
        """Have the curvature of the head learn from a step; `observe` folds it in elsewhere and gives its factors."""
        del written
        curvature.update([observe(step)])


AT_ONCE = WorkRunner()
