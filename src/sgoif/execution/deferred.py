"""Steps whose bookkeeping is deferred on a GPU, and done for many in a row.

Training on a GPU waits for the host (docs/decisions/0009-deferred-without-graphs.md), so most steps of a long run only
leave a `HeadSnapshot` behind. Nothing is decided later than it would be: none is deferred near a refresh, and
a complete block ends the waiting. So does a step that the curvature of layers below the head learns from, since much is
kept of it. Indices, which are checked last, are checked at once in the first steps of a run, where mistakes in a loop
show. The rest of a refresh, too, is done when the GPU has come that far, as long as the head alone is watched.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.core.interrupts import guarded
from sgoif.core.types import NO_INDICES, Indices
from sgoif.engine.pipeline import OwnerRef, StepPipeline
from sgoif.engine.step import ClosedStep, OpenStep
from sgoif.errors import IndexingError
from sgoif.execution.base import Scope, StepExecutor
from sgoif.scoring.step_batch import Observation
from sgoif.tracking.head_snapshot import HeadSnapshot, IndexBuffer
from sgoif.tracking.pass_record import PassRecord
from sgoif.tracking.validation import is_plain_index

PROMPT_STEPS = 64
"""Steps at the beginning of a run that are not deferred."""
MOST_DEFERRED = 24
"""Steps after which a wrong index is named at the latest."""


class DeferredExecutor(StepExecutor):
    """Defers most steps, as many in a row as nothing is due in."""

    def __init__(self, pipeline: StepPipeline) -> None:
        super().__init__(pipeline)
        self.head_alone = len(pipeline.all_layers) == 1
        pipeline.refreshes_later = self.head_alone  # responses below the head belong to their directions
        self.deferred: list[ClosedStep | HeadSnapshot] = []
        self.deferral_budget = 0
        """How many of the next steps may be deferred."""
        self._indices = IndexBuffer(MOST_DEFERRED)

    def open(self, index: Any, weights: Any, owner: OwnerRef) -> Scope:
        pipeline = self.pipeline
        if self.deferral_budget <= 0 or weights is not None or not is_plain_index(index, pipeline.largest_batch):
            return pipeline.open(index, weights, owner)
        learning = pipeline.learner.wants(pipeline.steps)
        own = self._indices.put(len(self.deferred), index)
        if pipeline.capture.head_only_capture and (self.head_alone or not learning):
            directions = pipeline.directions
            body = PassRecord(directions.in_turn(pipeline.steps)) if directions.lifted else None
            snapshot = HeadSnapshot(own, (own.shape[0], pipeline.objective.classes), learning, body)
            pipeline.capture.begin(snapshot, owner)
            return snapshot
        return OpenStep(pipeline.watch(True, learning, owner), own, learning=learning)

    def close(self, scope: Scope, target: Any) -> None:
        pipeline = self.pipeline
        if isinstance(scope, HeadSnapshot):
            record = pipeline.capture.close_snapshot(scope)
            if record is None:
                known = pipeline.objective.check(target, torch.Size(scope.shape), self.device)
                if known is not None:
                    scope.target, scope.label = known
                self.defer_step(scope)
                return
            scope = OpenStep(record, scope.indices, learning=scope.learning)
        else:
            pipeline.capture.end(scope.record)
        record = scope.record
        if scope.scored:
            pipeline.gradients.autocast = record.autocast
        if isinstance(scope.indices, Tensor):
            kept = record if scope.learning and not self.head_alone else None
            step = pipeline.observe(scope, target)
            self.defer_step(ClosedStep(step, scope.indices, kept, learning=scope.learning, checked=False))
            return
        self.drain()
        pipeline.commit(pipeline.close(scope, target))
        self.deferral_budget = self._allowance()
        capture = pipeline.capture
        capture.head_only_capture = not capture.compiled and record.head_suffices(
            pipeline.head, pipeline.objective.classes
        )

    def cancel(self, scope: Scope) -> None:
        if isinstance(scope, HeadSnapshot):
            self.pipeline.capture.close_snapshot(scope)
        else:
            self.pipeline.capture.end(scope.record)

    @guarded
    def drain(self) -> None:
        if self.deferred:
            self._commit_deferred()
        self.pipeline.complete_refresh()

    def reset(self) -> None:
        self.deferral_budget = 0

    def defer_step(self, step: ClosedStep | HeadSnapshot) -> None:
        """Have one more step deferred; too many of them are committed."""
        self.deferred.append(step)
        self.pipeline.steps += 1
        self.deferral_budget -= 1
        if self.deferral_budget <= 0:
            self._commit_deferred()

    def _allowance(self) -> int:
        """How many of the next steps may be deferred."""
        pipeline = self.pipeline
        if pipeline.steps < PROMPT_STEPS or pipeline.directions.psi is None or pipeline.queue.copying:
            return 0
        batch = pipeline.largest_batch  # with fewer examples everything comes later
        self._indices.fit(batch)
        learning = MOST_DEFERRED if self.head_alone else -pipeline.steps % pipeline.learner.interval(pipeline.steps) + 1
        quiet = pipeline.schedule.steps_until_refresh(batch, pipeline.ledger.used, pipeline.pending is not None)
        room = pipeline.queue.room(batch)
        return max(0, min(learning, quiet, room, MOST_DEFERRED) - len(self.deferred))

    def _commit_deferred(self) -> None:
        """Commit deferred steps, in their order. After an error those behind the faulty one stay deferred."""
        kept = self._indices.keep([step.indices for step in self.deferred])
        steps = [_closed(step, indices) for step, indices in zip(self.deferred, kept, strict=True)]
        pipeline = self.pipeline
        self.deferred = []
        pipeline.steps -= len(steps)
        waiting = [steps]
        try:
            pipeline.poll()
            while waiting:
                steps = waiting.pop()
                if self._enqueue_together(steps):
                    self._commit_together(steps)
                elif len(steps) > 1:  # an epoch may have ended in between
                    cut = self._first_again(steps)
                    if cut:
                        waiting += [steps[cut:], steps[:cut]]
                    else:
                        waiting.append(steps)
                        pipeline.score_queue()
                else:
                    pipeline.commit(steps[0])
        except IndexingError as error:
            left = sum(map(len, waiting))
            if left:
                error.add_note(f"This is about a step {left} steps ago; on a GPU they are looked at together.")
            raise
        finally:
            self.deferred = [step for steps in reversed(waiting) for step in steps]
            pipeline.steps += len(self.deferred)
            self.deferral_budget = self._allowance()

    def _enqueue_together(self, steps: list[ClosedStep]) -> bool:
        """Queue steps for their scores, if nothing is due in between and every example stands in one of them alone."""
        pipeline, queue, used = self.pipeline, self.pipeline.queue, self.pipeline.ledger.used
        found = [step.observation for step in steps if step.observation is not None]
        if len(found) < len(steps) or any(step.record for step in steps[:-1]):
            return False
        sizes = [step.indices.shape[0] for step in steps]
        if pipeline.schedule.steps_until_refresh(max(sizes), used, pipeline.pending is not None) < len(steps):
            return False
        indices = _all_indices(steps)
        if not _in_range(indices, used):
            return False
        pipeline.warn_of_held_out(indices)
        queue.reserve(used)
        queue.watch()
        return queue.add_together(found, indices, sizes)

    def _commit_together(self, steps: list[ClosedStep]) -> None:
        """Learn from those of these steps that are meant for it, score a complete block, and count."""
        pipeline = self.pipeline
        pipeline.schedule.end(sum(step.indices.shape[0] for step in steps), len(steps))
        pipeline.steps += len(steps)
        for step in steps:
            if step.learning and step.observation is not None:
                pipeline.learn(step.observation, step.record)
        if pipeline.queue.full:
            pipeline.score_queue()

    def _first_again(self, steps: list[ClosedStep]) -> int:
        """Where to part these steps: before the first that names an example again, or in the middle if none does.

        0: that example waits, so what waits is to be scored first.
        """
        indices, used, queue = _all_indices(steps), self.pipeline.ledger.used, self.pipeline.queue
        if not _in_range(indices, used):
            return len(steps) // 2
        queue.reserve(used)
        numbers = np.repeat(np.arange(len(steps)), [step.indices.shape[0] for step in steps])
        last = np.zeros(used, dtype=np.int64)
        last[indices] = numbers
        found = last[indices]
        again = np.concatenate([found[found != numbers], numbers[queue.held(indices)]])
        first = int(again.min()) if len(again) else len(steps) // 2
        return first if queue.steps else max(1, first)


def _closed(step: ClosedStep | HeadSnapshot, indices: Indices | Tensor) -> ClosedStep:
    """A deferred step with these indices; what a snapshot has seen in the form that all other steps have."""
    if isinstance(step, ClosedStep):
        return replace(step, indices=indices)
    delta, output, inputs = step.gradient, step.output, step.inputs
    if delta is None or output is None or inputs is None:
        return ClosedStep(None, indices, None, checked=False)
    seen = Observation(NO_INDICES, output, delta, inputs, delta, step.response, step.target, step.version, step.label)
    return ClosedStep(seen, indices, None, learning=step.learning, checked=False)


def _in_range(indices: Indices, used: int) -> bool:
    return bool(indices.view(np.uint64).max() < used)  # what is negative is large without its sign


def _all_indices(steps: list[ClosedStep]) -> Indices:
    """The indices of all these steps, on the host."""
    parts = [step.indices for step in steps]
    if any(isinstance(part, Tensor) for part in parts):
        return torch.cat([torch.as_tensor(part, device="cpu") for part in parts]).numpy()
    return np.concatenate(parts)
