"""One training step as the monitor sees it: entered, left, and booked, at once or with the steps that follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from sgoif.core.interrupts import TorchModes, guarded
from sgoif.distributed.communicator import Word
from sgoif.scoring.step_batch import Observation
from sgoif.tracking.head_snapshot import Glimpse
from sgoif.tracking.pass_record import Record
from sgoif.tracking.validation import Indices, check_apart, check_index, check_weights, is_plain_index

if TYPE_CHECKING:
    from sgoif.monitor import InfluenceMonitor

NOTHING: frozenset[str] = frozenset()
NO_DIRECTIONS: Mapping[str, Tensor] = MappingProxyType({})
NOBODY: Indices = np.zeros(0, dtype=np.int64)


class Begun(NamedTuple):
    """What is known of a step when its forward pass begins."""

    record: Record
    indices: Indices | Tensor
    weights: Tensor | None
    scored: bool
    learning: bool
    late: bool
    """Whether the indices are still to be looked at."""
    seconds: float
    """That looking took."""


class Ended(NamedTuple):
    """What is known of a step when its backward pass has ended."""

    step: Observation | None
    """None: nothing to score."""
    indices: Indices | Tensor
    record: Record | None
    """None of a step that is late, unless the curvature of layers below the head learns from it."""
    scored: bool
    learning: bool
    late: bool
    """Whether its indices are still to be looked at."""
    seconds: float = 0.0
    """That it took so far; of late steps, which no budget has, nobody asks."""
    hooks: float = 0.0
    """Of these, in hooks that score."""
    mark: torch.cuda.Event | None = None


class _Exit:
    """The `__exit__` of a step: an object that lives as long as the `with` statement that asked for it.

    Ctrl-C may come just when a method begins, `__exit__` as well, and then nothing of it runs. The statement lets go of
    what it would have called all the same, so that afterwards the step can be seen to be abandoned.
    """

    def __get__(self, step: Step | None, owner: type[Step] | None = None) -> Callable[..., None]:
        if step is None:
            return Step._leave
        leave = partial(step._leave)
        if step._statement is None or step._statement() is None:
            step._statement = ref(leave)
        return leave


class Step:
    """One training step of a monitor. A plain object: it is made in every step, and a generator would take longer."""

    __slots__ = ("__weakref__", "_begun", "_index", "_modes", "_monitor", "_statement", "_target", "_weights")

    def __init__(self, monitor: InfluenceMonitor, index: Any, target: Any, weights: Any) -> None:
        self._monitor, self._index, self._target, self._weights = monitor, index, target, weights
        self._begun: Begun | Glimpse | None = None
        self._modes: TorchModes | None = None
        self._statement: ref[Callable[..., None]] | None = None

    __exit__ = _Exit()

    @guarded
    def __enter__(self) -> None:
        if self.abandoned:
            self._statement = None  # somebody asked for `__exit__` and did not use it
        self._modes = TorchModes(self.device.type)
        try:
            self._begun = begin(self._monitor, self._index, self._weights, ref(self))
        except BaseException:
            self._monitor._capture.forget(ref(self))
            raise

    @property
    def abandoned(self) -> bool:
        """Whether the `with` statement around this step has ended without leaving it."""
        return self._statement is not None and self._statement() is None

    @property
    def device(self) -> torch.device:
        return self._monitor.device

    @property
    def answered(self) -> bool:
        """Whether a backward pass has come to the head of the model in this step."""
        return self._monitor._capture.reached

    @guarded
    def _leave(self, kind: object = None, *_: object) -> None:
        begun, self._begun = self._begun, None  # what a step leaves behind must not live as long as this object is kept
        monitor = self._monitor
        if kind is not None and self._modes is not None:
            self._modes.restore()
        if isinstance(begun, Glimpse):
            record = monitor._capture.pass_on(begun)
            if kind is None:
                monitor._pass_by(begun, record, self._target)
        elif begun is not None:
            monitor._capture.end(begun.record)
            if kind is None:
                monitor._end(begun, self._target)


def begin(monitor: InfluenceMonitor, index: Any, weights: Any, owner: ref[Step]) -> Begun | Glimpse:
    """Look at the indices, or take them as they are, and open a record."""
    if monitor._patience > 0 and weights is None and is_plain_index(index, monitor._largest_batch):
        learning = not monitor.steps % monitor._curvature_every
        own = monitor._rows.put(len(monitor._late), index)
        if monitor._capture.brief and not (learning and len(monitor.layers) > 1):
            body = Record(monitor._directions_in_turn()) if monitor._lifted else None
            glimpse = Glimpse(own, monitor.classes, learning, body)
            monitor._capture.begin(glimpse, owner)
            return glimpse
        return Begun(_open(monitor, True, learning, owner), own, None, True, learning, True, 0.0)
    monitor.cadence.begin()
    start, scored = perf_counter(), monitor.cadence.scores_this_step(monitor.steps)

    def announced() -> tuple[Indices, Tensor | None]:
        indices = _checked(monitor, index, scored)
        return indices, check_weights(weights, len(indices), monitor.device)

    indices, weighed = monitor.ranks.attempt(announced, (NOBODY, None))
    learning = scored and (monitor.steps % monitor._curvature_every == 0 or not monitor.curvature.ready)
    record = _open(monitor, scored, learning, owner)
    return Begun(record, indices, weighed, scored, learning, False, perf_counter() - start)


def _open(monitor: InfluenceMonitor, scored: bool, learning: bool, owner: ref[Step]) -> Record:
    """Watch the forward and backward pass that follow."""
    directions = monitor._directions_in_turn() if scored and monitor._lifted else NO_DIRECTIONS
    keep = NOTHING if not scored else monitor._every_layer if learning else monitor._head_alone
    record = Record(directions, keep)
    monitor._capture.begin(record, owner)
    return record


def end(monitor: InfluenceMonitor, begun: Begun, target: Any) -> None:
    """Take what the forward and backward pass left behind, and book it now."""
    record, indices, weighed, scored, learning, _, seconds = begun
    start = perf_counter() - seconds
    mark, step = monitor.cadence.mark(), None
    if scored:
        step = monitor.ranks.attempt(lambda: monitor._observed(record, indices, target, weighed), None)
    hooks = record.seconds if record.directions else 0.0
    seconds = perf_counter() - start + record.seconds
    book(monitor, Ended(step, indices, record, scored, learning, False, seconds, hooks, mark))


def book(monitor: InfluenceMonitor, ended: Ended) -> None:
    """Check who is in a step, learn from it, let it wait for its scores."""
    step, indices, record, scored, learning, late, seconds, hooks, mark = ended
    start, refreshing = perf_counter() - seconds, monitor.cadence.spent
    if late:
        indices = _checked(monitor, indices, scored)
        step = step and replace(step, indices=indices)
    else:
        monitor.ranks.attempt(monitor._read_mail, None)
    assert not isinstance(indices, Tensor)
    everyone, word = monitor.ranks.roll_call(indices, Word(monitor.cadence.in_time, monitor.cadence.stride))
    if step is not None:
        monitor._finish(step, record, everyone, learning, word)
    seconds = perf_counter() - start - (monitor.cadence.spent - refreshing)
    monitor.cadence.account(seconds, scored=scored, mark=mark, hooks=hooks)
    monitor.steps += 1
    monitor.cadence.end(len(everyone))


def _checked(monitor: InfluenceMonitor, index: Any, scored: bool) -> Indices:
    indices = check_index(index, monitor.ledger.fixed_size, monitor.settings.allow_duplicates or not scored)
    look_for_held_out(monitor, indices)
    return indices


def look_for_held_out(monitor: InfluenceMonitor, indices: Indices) -> None:
    """Warn once where held-out examples are trained on."""
    if monitor.curriculum is None or not monitor.curriculum.finished:  # a curriculum may let the hold-out join
        monitor._held_out = check_apart(indices, monitor._held_out)
