"""What a monitor does over and over in the same way, repeated from a recording where the device is a GPU.

Recorded are the scoring of a block of steps and, where the head alone is watched, the learning from a step: what comes
often enough to matter. Everything else is done plainly, and so is what comes in a shape of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sgoif.core.losses import cross_entropy
from sgoif.curvature.base import Factors
from sgoif.curvature.kfac import KFAC
from sgoif.device.cuda_graph import Recording, Work
from sgoif.scoring.influence import SETTLED, StepScores, alike
from sgoif.scoring.step_batch import Observation, lined_up, together

if TYPE_CHECKING:
    from sgoif.monitor import InfluenceMonitor

MOST_RESPONSES = 2**14
"""Numbers that scoring forms for every example; a recording keeps the memory for them, a plain block gives it back."""
Block = tuple[Observation, StepScores]


class Recorded:
    """The recordings of one monitor, which is given to each call: it must not live as long as they do."""

    def __init__(self, monitor: InfluenceMonitor) -> None:
        self._possible = (
            monitor.settings.recorded
            and monitor.device.type == "cuda"
            and monitor.ranks.size == 1
            and monitor.loss is cross_entropy  # what others give may do anything
            and monitor.settings.reduction == "auto"
            and len(monitor.group_names) * monitor.head.block.rows <= MOST_RESPONSES
        )
        self._blocks: Recording[Block] = Recording(monitor.device)
        self._learning: Recording[None] = Recording(monitor.device)

    def blocks(self, monitor: InfluenceMonitor) -> bool:
        """Whether blocks are recorded now: not while a run is young, nor while somebody looks at every step."""
        return (
            self._possible
            and not self._blocks.broken
            and monitor.squash.updates >= SETTLED
            and not monitor.observers
            and not monitor.ledger.duplicates
        )

    def score(
        self, monitor: InfluenceMonitor, parts: list[list[Tensor]], sizes: Sequence[int], work: Work[Block]
    ) -> Block:
        """Have a block of steps scored; `work` depends on nothing else that can change but what its key names."""
        if not self.blocks(monitor) or not alike(sizes):
            return work([torch.cat(parts.pop(0)) for _ in range(len(parts))])
        assert monitor.directions is not None
        monitor.ledger.weigh(monitor._step_weight)
        held = (monitor.directions, monitor.support, monitor.direction_error, monitor._nonfinite, monitor.squash.mean)
        key = (len(sizes), sizes[0], *_kinds(parts), *_places(held), *monitor.ledger.places())
        return self._blocks.run(key, parts, work)

    def learn(self, monitor: InfluenceMonitor, step: Observation, observe: Callable[[Observation], Factors]) -> None:
        """Have the curvature learn from a step; `observe` folds the step in elsewhere and gives its factors."""
        curvature = monitor.curvature
        if not self._possible or not isinstance(curvature, KFAC) or not curvature.ready:
            curvature.update([observe(step)])
            return
        places, parts = lined_up([step])

        def work(tensors: list[Tensor]) -> None:
            curvature.fold([observe(together(places, tensors, step.indices))])

        held = (monitor.controller.gradient_norm, monitor.competence.loss, monitor.competence.confusion)
        key = (*_kinds(parts), *_places(held), *curvature.places())
        curvature.updating(lambda: self._learning.run(key, parts, work))


def _kinds(parts: Sequence[Sequence[Tensor]]) -> tuple[object, ...]:
    return tuple((part[0].shape, part[0].dtype) for part in parts)


def _places(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in tensors)
