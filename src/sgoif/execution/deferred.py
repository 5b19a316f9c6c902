"""Steps whose bookkeeping is put off on a GPU, and done for many in a row.

Training on a GPU waits for the host, and a look at one step between two others takes the host several times as long as
the same look at the next of many: what it needs has left the caches. So most steps of a long run only leave behind
what was seen of them (`glimpse`). Nothing is decided later than it would be: none is put off near a refresh, and a
complete block ends the waiting. So does a step that the curvature of layers below the head learns from, since it keeps
much in memory. Indices, which are looked at last, are looked at promptly in the first steps of a run, where mistakes in
a loop show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sgoif.engine.pipeline import NOBODY, Begun, Ended, book, look_for_held_out
from sgoif.errors import IndexingError
from sgoif.scoring.influence import alike
from sgoif.scoring.step_batch import RECORDED_STEPS, Observation
from sgoif.tracking.head_snapshot import Glimpse
from sgoif.tracking.validation import Indices

if TYPE_CHECKING:
    from sgoif.monitor import InfluenceMonitor

PROMPT_STEPS = 64
MOST_LATE = RECORDED_STEPS
"""Steps after which a wrong index is named at the latest."""


def patience(monitor: InfluenceMonitor) -> int:
    """How many of the next steps may be late."""
    if monitor.steps < PROMPT_STEPS or monitor.directions is None or monitor._waiting.copying:
        return 0
    batch = monitor._largest_batch  # with fewer examples everything comes later
    monitor._rows.fit(batch)
    learning = -monitor.steps % monitor._curvature_every + 1 if len(monitor.layers) > 1 else MOST_LATE
    calm = monitor.cadence.calm(batch, monitor.ledger.used, monitor._look is not None)
    room = monitor._waiting.room(batch, monitor._recorded.blocks(monitor))
    return max(0, min(learning, calm, room, MOST_LATE) - len(monitor._late))


def put_off(monitor: InfluenceMonitor, begun: Begun, target: Any) -> None:
    """Take what the forward and backward pass left behind, and book it with the steps that follow."""
    step = monitor._observed(begun.record, begun.indices, target, None)
    kept = begun.record if begun.learning and len(monitor.layers) > 1 else None
    add(monitor, Ended(step, begun.indices, kept, True, begun.learning, True))


def add(monitor: InfluenceMonitor, late: Ended | Glimpse) -> None:
    """One more step that is late; too many of them are booked."""
    monitor._late.append(late)
    monitor.steps += 1
    monitor._patience -= 1
    if monitor._patience <= 0:
        settle(monitor)


def settle(monitor: InfluenceMonitor) -> None:
    """Book the late steps, in their order. After an error those behind the faulty one stay late."""
    kept = monitor._rows.keep([step.indices for step in monitor._late])
    late = [_looked_through(step, indices) for step, indices in zip(monitor._late, kept, strict=True)]
    monitor._late = []
    monitor.steps -= len(late)
    waiting = [late]
    try:
        monitor._read_mail()
        while waiting:
            steps = waiting.pop()
            if _joined(monitor, steps):
                _book_together(monitor, steps)
            elif len(steps) > 1:  # an epoch may have ended in between
                cut = _first_again(monitor, steps)
                if cut:
                    waiting += [steps[cut:], steps[:cut]]
                else:
                    waiting.append(steps)
                    monitor._score_waiting()
            else:
                book(monitor, steps[0])
    except IndexingError as error:
        left = sum(map(len, waiting))
        if left:
            error.add_note(f"This is about a step {left} steps ago; on a GPU they are looked at together.")
        raise
    finally:
        monitor._late = [ended for steps in reversed(waiting) for ended in steps]
        monitor.steps += len(monitor._late)
        monitor._patience = patience(monitor)


def _looked_through(late: Ended | Glimpse, indices: Indices | Tensor) -> Ended:
    """A late step with these indices; what a glimpse has seen in the form that all other steps have."""
    if isinstance(late, Ended):
        return late._replace(indices=indices)
    delta, output, inputs = late.gradient, late.output, late.inputs
    if delta is None or output is None or inputs is None:
        return Ended(None, indices, None, True, False, True)
    step = Observation(NOBODY, output, delta, inputs, delta, late.response, late.target, late.version)
    return Ended(step, indices, None, True, late.learning, True)


def _joined(monitor: InfluenceMonitor, late: list[Ended]) -> bool:
    """Let steps wait for their scores, if nothing is to do in between and every example stands in one of them alone."""
    waiting, used = monitor._waiting, monitor.ledger.used
    steps = [ended.step for ended in late if ended.step is not None]
    if len(steps) < len(late) or any(ended.record for ended in late[:-1]):
        return False
    sizes = [ended.indices.shape[0] for ended in late]
    if monitor._recorded.blocks(monitor) and (not alike(sizes) or waiting.differs(sizes[0])):
        return False
    if monitor.cadence.calm(max(sizes), used, monitor._look is not None) < len(late):
        return False
    indices = _all(late)
    if not _in_range(indices, used):
        return False
    look_for_held_out(monitor, indices)
    waiting.reserve(used)
    waiting.watch()
    return waiting.add_together(steps, indices, sizes)


def _first_again(monitor: InfluenceMonitor, late: list[Ended]) -> int:
    """Where to part these steps: before the first that names an example again, or in the middle if none does.

    0: that example waits, so what waits is to be scored first.
    """
    indices, used = _all(late), monitor.ledger.used
    if not _in_range(indices, used):
        return len(late) // 2
    monitor._waiting.reserve(used)
    numbers = np.repeat(np.arange(len(late)), [ended.indices.shape[0] for ended in late])
    last = np.zeros(used, dtype=np.int64)
    last[indices] = numbers
    found = last[indices]
    again = np.concatenate([found[found != numbers], numbers[monitor._waiting.held(indices)]])
    first = int(again.min()) if len(again) else len(late) // 2
    return first if monitor._waiting.steps else max(1, first)


def _in_range(indices: Indices, used: int) -> bool:
    return bool(indices.view(np.uint64).max() < used)  # what is negative is large without its sign


def _all(late: list[Ended]) -> Indices:
    """The indices of all these steps, on the host."""
    parts = [ended.indices for ended in late]
    if any(isinstance(part, Tensor) for part in parts):
        return torch.cat([torch.as_tensor(part, device="cpu") for part in parts]).numpy()
    return np.concatenate(parts)


def _book_together(monitor: InfluenceMonitor, late: list[Ended]) -> None:
    """Learn from those of these steps that are meant for it, score a complete block, and count."""
    monitor.cadence.end(sum(ended.indices.shape[0] for ended in late), len(late))
    monitor.steps += len(late)
    monitor._batch = late[-1].indices.shape[0]
    for ended in late:
        if ended.learning and ended.step is not None:
            monitor._learn(ended.step, ended.record)
    if monitor._waiting.full(monitor._recorded.blocks(monitor)):
        monitor._score_waiting()
