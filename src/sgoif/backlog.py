"""Steps whose bookkeeping is put off on a GPU, and done for many in a row.

Training on a GPU waits for the host, and a look at one step between two others takes the host several times as long as
the same look at the next of many: what it needs has left the caches. So most steps of a long run only leave behind
what was seen of them. Nothing is decided later than it would be: a step that the curvature learns from ends the
waiting, none is put off near a refresh, and a complete block ends it too. Indices, which are looked at last, are looked
at promptly in the first steps of a run, where mistakes in a loop show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sgoif.checks import Indices
from sgoif.errors import IndexingError
from sgoif.glimpse import Glimpse
from sgoif.scoring import Observation, alike
from sgoif.stepping import NOBODY, Begun, Ended, book, look_for_held_out

if TYPE_CHECKING:
    from sgoif.monitor import InfluenceMonitor

PROMPT_STEPS = 64


def patience(monitor: InfluenceMonitor) -> int:
    """How many of the next steps may be late."""
    if monitor.steps < PROMPT_STEPS or monitor.directions is None or monitor._waiting.copying:
        return 0
    batch = monitor._largest_batch  # with fewer examples everything comes later
    monitor._rows.fit(batch)
    learning = -monitor.steps % monitor._curvature_every + 1
    calm = monitor.cadence.calm(batch, monitor.ledger.used, monitor._look is not None)
    room = monitor._waiting.room(batch, monitor._recorded.blocks(monitor))
    return max(0, min(learning, calm, room) - len(monitor._late))


def put_off(monitor: InfluenceMonitor, begun: Begun, target: Any) -> None:
    """Take what the forward and backward pass left behind, and book it with the steps that follow."""
    step = monitor._observed(begun.record, begun.indices, target, None)
    kept = begun.record if begun.learning else None
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
    monitor._rows.keep(monitor._late)
    late = [_looked_through(step) if isinstance(step, Glimpse) else step for step in monitor._late]
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
                waiting += [steps[cut:], steps[:cut]]
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


def _looked_through(glimpse: Glimpse) -> Ended:
    """What a glimpse has seen, in the form that all other steps have."""
    delta, output, inputs = glimpse.gradient, glimpse.output, glimpse.inputs
    if delta is None or output is None or inputs is None:
        return Ended(None, glimpse.indices, None, True, False, True)
    step = Observation(NOBODY, output, delta, inputs, delta, None, glimpse.target, glimpse.version)
    return Ended(step, glimpse.indices, None, True, glimpse.learning, True)


def _joined(monitor: InfluenceMonitor, late: list[Ended]) -> bool:
    """Let steps wait for their scores, if nothing is to do in between and every example stands in one of them alone."""
    waiting, used = monitor._waiting, monitor.ledger.used
    steps = [ended.step for ended in late if ended.step is not None]
    if len(steps) < len(late) or any(ended.learning for ended in late[:-1]):
        return False
    sizes = [ended.indices.shape[0] for ended in late]
    if monitor._recorded.blocks(monitor) and (not alike(sizes) or waiting.differs(sizes[0])):
        return False
    if monitor.cadence.calm(max(sizes), used, monitor._look is not None) < len(late):
        return False
    indices = _all(late)
    if indices.min() < 0 or indices.max() >= used:
        return False
    look_for_held_out(monitor, indices)
    waiting.reserve(used)
    waiting.watch()
    return waiting.add_together(steps, indices, sizes)


def _first_again(monitor: InfluenceMonitor, late: list[Ended]) -> int:
    """Where to part these steps: before the first that names an example again, or in the middle if none does."""
    indices, used = _all(late), monitor.ledger.used
    if indices.min() < 0 or indices.max() >= used:
        return len(late) // 2
    monitor._waiting.reserve(used)
    numbers = np.repeat(np.arange(len(late)), [ended.indices.shape[0] for ended in late])
    last = np.zeros(used, dtype=np.int64)
    last[indices] = numbers
    found = last[indices]
    again = np.concatenate([found[found != numbers], numbers[monitor._waiting.held(indices)]])
    return max(1, int(again.min())) if len(again) else len(late) // 2


def _all(late: list[Ended]) -> Indices:
    """The indices of all these steps, on the host."""
    parts = [ended.indices for ended in late]
    if any(isinstance(part, Tensor) for part in parts):
        return torch.cat([torch.as_tensor(part, device="cpu") for part in parts]).numpy()
    return np.concatenate(parts)


def _book_together(monitor: InfluenceMonitor, late: list[Ended]) -> None:
    """Learn from the last of these steps if it is meant for that, score a complete block, and count."""
    last = late[-1]
    monitor.cadence.end(sum(ended.indices.shape[0] for ended in late), len(late))
    monitor.steps += len(late)
    monitor._batch = last.indices.shape[0]
    if last.learning and last.step is not None:
        monitor._learn(last.step, last.record)
    if monitor._waiting.full(monitor._recorded.blocks(monitor)):
        monitor._score_waiting()
