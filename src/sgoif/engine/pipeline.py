"""One training step after the other: watched, looked through for mistakes, learned from, queued for its scores.

When a step is committed is decided by an executor (`sgoif.execution`), what happens then is decided here.
"""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from sgoif.core.logits import version_of
from sgoif.core.precision import full_precision
from sgoif.core.types import NO_INDICES, Flags, Indices
from sgoif.distributed.communicator import StepDecision
from sgoif.engine.anchor_refresher import AnchorPass, AnchorRefresher
from sgoif.engine.block_scorer import BlockScorer
from sgoif.engine.curvature_learner import CurvatureLearner
from sgoif.engine.group_directions import NO_DIRECTIONS
from sgoif.engine.step import ClosedStep, OpenStep
from sgoif.errors import StepError
from sgoif.scoring.score_queue import ScoreQueue
from sgoif.scoring.step_batch import Observation
from sgoif.tracking.capture import Capture, Owner
from sgoif.tracking.pass_record import PassRecord
from sgoif.tracking.validation import check_apart, check_index, check_record, check_weights

FIRST_LOOKS = 16
"""Steps whose labels are looked at even if the curvature does not learn from them."""
NO_LAYERS: frozenset[str] = frozenset()
OwnerRef = Callable[[], Owner | None]


class Weighting(Protocol):
    """What `monitor.weights` asks: `sgoif.tasks.Curriculum`, say."""

    finished: bool
    """Whether the hold-out may join the training."""

    def weights(self, index: Any) -> Tensor:
        """What the losses of a batch are to be multiplied with."""


class StepPipeline:
    """Counts steps and commits them; owns the queue of those that wait for their scores."""

    def __init__(
        self,
        capture: Capture,
        scorer: BlockScorer,
        learner: CurvatureLearner,
        refresher: AnchorRefresher,
        queue: ScoreQueue,
    ) -> None:
        self.capture, self.settings, self.communicator = capture, scorer.settings, scorer.communicator
        self.scorer, self.learner, self.refresher, self.queue = scorer, learner, refresher, queue
        self.objective = scorer.objective
        self.ledger, self.directions = scorer.ledger, scorer.directions
        self.finite, self.mixtures = scorer.finite, scorer.mixtures
        self.gradients, self.schedule = refresher.gradients, refresher.schedule
        self.time = self.schedule.time
        self.device, self.head = scorer.device, scorer.head.name
        self.head_layer = frozenset({self.head})
        self.all_layers = frozenset(layer.name for layer in self.directions.layers)
        self.refreshes_later = False
        """Whether steps go on before a refresh is complete."""
        self.weighting: Weighting | None = None
        self.steps = 0
        self.pending: AnchorPass | None = None
        """Of a refresh that is not complete."""
        self._held_out: Flags | None = refresher.held_out.flags()

    @property
    def largest_batch(self) -> int:
        """Examples of the largest step so far."""
        return self.gradients.training_batch

    # --- watching -----------------------------------------------------------------------------------------------

    def open(self, index: Any, weights: Any, owner: OwnerRef) -> OpenStep:
        """Look at the indices of a step and watch the passes that follow."""
        self.time.begin()
        start, scored = perf_counter(), self.steps % self.time.stride == 0

        def checked() -> tuple[Indices, Tensor | None]:
            indices = self.check(index, scored)
            return indices, check_weights(weights, len(indices), self.device)

        indices, given = self.communicator.capture_error(checked, (NO_INDICES, None))
        learning = scored and self.learner.wants(self.steps)
        record = self.watch(scored, learning, owner)
        return OpenStep(record, indices, scored, learning, given, perf_counter() - start)

    def watch(self, scored: bool, learning: bool, owner: OwnerRef) -> PassRecord:
        """Watch the forward and backward pass that follow."""
        directions = self.directions.in_turn(self.steps) if scored else NO_DIRECTIONS
        keep = NO_LAYERS if not scored else self.all_layers if learning else self.head_layer
        record = PassRecord(directions, keep)
        self.capture.begin(record, owner)
        return record

    def check(self, index: Any, scored: bool) -> Indices:
        """The indices of a step, looked through for mistakes."""
        indices = check_index(index, self.ledger.fixed_size, self.settings.allow_duplicates or not scored)
        self.warn_of_held_out(indices)
        return indices

    def weights(self, index: Any) -> Tensor:
        """What to multiply the losses of a batch with."""
        if self.weighting is None:
            raise StepError("nothing weighs losses yet: make sgoif.tasks.Curriculum(monitor) before the first step")
        return self.weighting.weights(index)

    def warn_of_held_out(self, indices: Indices) -> None:
        """Warn once where held-out examples are trained on, unless they may join."""
        if self.weighting is None or not self.weighting.finished:
            self._held_out = check_apart(indices, self._held_out)

    def close(self, step: OpenStep, target: Any) -> ClosedStep:
        """Take what the forward and backward pass left behind."""
        start = perf_counter() - step.seconds
        mark, observation, record = self.time.mark(), None, step.record
        if step.scored:
            observation = self.communicator.capture_error(lambda: self.observe(step, target), None)
        hooks = record.seconds if record.directions else 0.0
        seconds = perf_counter() - start + record.seconds
        return ClosedStep(
            observation, step.indices, record, step.scored, step.learning, seconds, hooks=hooks, mark=mark
        )

    def observe(self, step: OpenStep, target: Any) -> Observation | None:
        """What a step left behind, looked through for mistakes; None: nothing to score."""
        record, indices, finite = step.record, step.indices, self.finite
        batch = indices.shape[0]
        check_record(record, batch, self.head, self.device, self.capture.closed)
        if step.weights is not None:
            record.unweigh(step.weights)
        logits, delta = record.answer(self.head, self.objective, batch)
        known = self.objective.check(target, logits.shape, self.device)
        if finite.at_once:  # elsewhere the look would make the host wait; the scorer takes it
            finite.note(logits, delta)
            if self.communicator.size == 1 and finite.to_skip(logits, delta):
                return None
            if known is None and (step.learning or self.steps < FIRST_LOOKS):
                self.mixtures.note(logits, delta)
        observation = Observation(
            indices=NO_INDICES if isinstance(indices, Tensor) else indices,
            logits=logits,
            logits_delta=delta,
            inputs=record.inputs[self.head],
            delta=record.deltas[self.head],
            response=record.response,
            target=None if known is None else known.values,
            label=None if known is None else known.label,
            version=version_of(logits),
        )
        return observation.copied() if self.capture.compiled else observation

    # --- committing ---------------------------------------------------------------------------------------------

    def commit(self, step: ClosedStep) -> None:
        """Check who is in a step, learn from it, let it wait for its scores."""
        start, refreshing = perf_counter() - step.seconds, self.time.spent
        observation, indices = step.observation, step.indices
        if step.checked:
            self.communicator.capture_error(self.poll, None)
        else:
            indices = self.check(indices, step.scored)
            observation = observation and replace(observation, indices=indices)
        assert not isinstance(indices, Tensor)
        own = StepDecision(self.time.in_time, self.time.stride)
        everyone, decision = self.communicator.exchange_step_header(indices, own)
        if observation is not None:
            self._enqueue(observation, step.record, everyone, step.learning, decision)
        seconds = perf_counter() - start - (self.time.spent - refreshing)
        self.time.account(seconds, scored=step.scored, mark=step.mark, hooks=step.hooks)
        self.steps += 1
        self.schedule.end(len(everyone))

    def _enqueue(
        self, step: Observation, record: PassRecord | None, everyone: Indices, learning: bool, decision: StepDecision
    ) -> None:
        """Learn the curvature, refresh when due, score in blocks; `everyone` names the whole batch of all ranks."""
        ledger, queue = self.ledger, self.queue
        batch = -(-len(everyone) // self.communicator.size)
        self.gradients.training_batch = max(batch, self.gradients.training_batch)
        if ledger.fixed_size is None:  # else there is room for all that `check_index` lets pass
            ledger.reserve(int(everyone.max()))
        if self.scorer.labels is not None:
            self.scorer.labels.reserve(int(everyone.max()))
        queue.reserve(ledger.used)
        queue.watch()
        if queue.meets(everyone):  # an example is scored once per block, so that its means are updated one by one
            self.score_queue()
        self.time.stride = decision.stride
        if learning:
            self.learn(step, record)
        if record is not None and self.directions.psi is None:
            self.begin_refresh()
            self.complete_refresh()
            step.response = self._first_response(record)
        if self.schedule.refresh_every == 1:
            self.score_queue()  # every step by the directions of that very step
        queue.add(step, everyone)
        self.complete_refresh()  # it says how soon the next is due, and reads what was noted so far
        if not self.mixtures.at_once and step.target is None and self.steps < FIRST_LOOKS and not learning:
            self.mixtures.note(step.logits, step.logits_delta)
        if self.schedule.due(len(everyone), ledger.used, decision.in_time):
            self.begin_refresh()
            if not self.refreshes_later:
                self.complete_refresh()
        elif queue.full:
            self.score_queue()

    @full_precision
    def _first_response(self, record: PassRecord) -> Tensor | None:
        """The response of the very first step, which ran before there were directions: of all layers, not of a turn."""
        scores = [
            self.capture.layers[name].respond(record.inputs[name], direction).dot(record.deltas[name])
            for name, direction in self.directions.lifted.items()
            if name in record.deltas
        ]
        return torch.stack(scores).sum(0) / self.directions.turns if scores else None

    def learn(self, step: Observation, record: PassRecord | None) -> None:
        """Have the curvature learn from a step."""
        self.complete_refresh()
        if not self.mixtures.at_once and step.target is None:
            self.mixtures.note(step.logits, step.logits_delta)
        self.learner.learn(step, record)

    def poll(self) -> None:
        """Raise what a GPU has found out about steps before."""
        self.finite.poll()
        self.mixtures.poll()

    def score_queue(self) -> None:
        """Score the steps that wait for it."""
        if not self.queue.steps or self.directions.psi is None:
            return
        self.complete_refresh()
        if waited := self.queue.take():
            self.scorer.score(waited)

    # --- refreshing ---------------------------------------------------------------------------------------------

    def begin_refresh(self) -> None:
        """The part of a refresh that needs the model as it is now."""
        if self.capture.closed:
            raise StepError("this monitor is closed: its hooks are gone, so nothing can be refreshed")
        if len(self.all_layers) > 1:
            self.score_queue()  # their responses belong to the old directions; the head alone is scored afresh
        self.pending = self.refresher.collect(self.steps, self.refreshes_later)
        self.schedule.refreshing()

    def complete_refresh(self) -> None:
        """The rest of a refresh, if one was begun: before anything else is scored or learned, or looked at."""
        if self.pending is None:
            return
        found, self.pending = self.pending, None
        self.schedule.overdue = True  # until it is done
        self.refresher.complete(found)
        self.schedule.overdue = False

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = int(state["steps"])
