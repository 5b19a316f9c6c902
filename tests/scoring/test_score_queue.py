"""Steps that wait for their block, and how a block is put together."""

from __future__ import annotations

import numpy as np
import torch

from sgoif.core.types import Indices
from sgoif.scoring.score_queue import ScoreQueue
from sgoif.scoring.step_batch import Observation, group_tensors, named, stack_steps


def _indices(*values: int) -> Indices:
    return np.array(values, dtype=np.int64)


def gather(steps: list[Observation]) -> Observation:
    places, parts = group_tensors(steps)
    return stack_steps(places, [torch.cat(part) for part in parts], named(steps))


def test_a_tensor_that_steps_hold_twice_is_joined_once() -> None:
    def step(start: int, same: bool) -> Observation:
        delta = torch.arange(start, start + 4.0).view(2, 2)
        other = delta if same else delta + 100
        return Observation(_indices(start, start + 1), delta + 10, delta, delta + 20, other, None, None)

    joined = gather([step(0, True), step(2, True)])
    assert joined.logits_delta is joined.delta
    assert joined.indices.tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(joined.delta, torch.cat([step(0, True).delta, step(2, True).delta]))
    mixed = gather([step(0, True), step(2, False)])
    torch.testing.assert_close(mixed.delta[2:], mixed.logits_delta[2:] + 100)


def a_step(first: int, size: int = 2, width: int = 3) -> Observation:
    delta = torch.full((size, 4), float(first))
    inputs = torch.full((size, width), first + 0.5)
    return Observation(np.arange(first, first + size), delta + 0.25, delta, inputs, delta, None, None, 0)


def queue_of(*steps: Observation) -> ScoreQueue:
    queue = ScoreQueue(buffered=True)
    for step in steps:
        queue.reserve(int(step.indices.max()) + 1)
        queue.add(step)
    return queue


def test_queued_steps_lie_in_one_place_of_their_own() -> None:
    first, second = a_step(0), a_step(2)
    queue = queue_of(first, second)
    for step in (first, second):
        step.logits.zero_()
        step.inputs.zero_()
    held = queue.take()
    assert [step.logits[0, 0].item() for step in held] == [0.25, 2.25]
    assert [step.inputs[0, 0].item() for step in held] == [0.5, 2.5]
    assert held[0].delta is held[0].logits_delta
    assert held[0].inputs.untyped_storage().data_ptr() == held[1].inputs.untyped_storage().data_ptr()


def test_the_place_is_used_again_for_the_next_block() -> None:
    queue = queue_of(a_step(0))
    place = queue.take()[0].inputs.data_ptr()
    queue.add(a_step(0))
    assert queue.take()[0].inputs.data_ptr() == place


def test_steps_that_do_not_fit_are_kept_all_the_same() -> None:
    large, other, more = a_step(2, size=200), a_step(202, width=5), a_step(204)
    queue = queue_of(a_step(0), large, other, more)
    for step in (large, other, more):
        step.inputs.zero_()
    held = queue.take()
    assert [len(step.logits) for step in held] == [2, 200, 2, 2]
    assert [step.inputs[0, 0].item() for step in held] == [0.5, 2.5, 202.5, 204.5]
    assert not any(step.overwritten for step in held)
