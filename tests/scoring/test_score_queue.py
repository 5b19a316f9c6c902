"""Steps that wait for their block, and how a block is put together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sgoif.core.types import Indices
from sgoif.scoring.score_queue import BLOCK_STEPS, ScoreQueue
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


WIDE = 16_372
"""Inputs of this width make 64 KiB of an example: 4 × (3 × 4 + 16,372) bytes."""


@pytest.mark.parametrize("buffered", [False, True])
def test_nothing_waits_at_first_nor_after_a_reset(buffered: bool) -> None:
    queue = ScoreQueue(buffered)
    for _ in range(2):
        assert not queue.full
        assert queue.room(5) == BLOCK_STEPS
        assert queue.take() == []
        queue.reserve(4)
        assert queue.held(_indices(0, 1, 2, 3)).dtype == bool
        assert not queue.meets(_indices(0, 1, 2, 3))
        queue.add(a_step(0, size=4))
        queue.reset()


def test_a_buffer_holds_as_many_steps_as_fit_a_mebibyte_and_one_more() -> None:
    queue = queue_of(*(a_step(2 * step, width=WIDE) for step in range(11)))
    places = [step.inputs.untyped_storage().data_ptr() for step in queue.take()]
    assert len(set(places[:9])) == 1
    assert len(set(places)) == 3, "the others have places of their own"


@pytest.mark.parametrize(("buffered", "steps"), [(True, 3), (False, 49)])
def test_a_block_is_complete_by_memory(buffered: bool, steps: int) -> None:
    """Eight examples of 64 KiB a step: more than a mebibyte is the third of them; of 24 MiB, the 49th."""
    queue = ScoreQueue(buffered)
    queue.reserve(8 * steps)
    for step in range(steps):
        assert not queue.full
        assert queue.room(8) == (steps - step if step else BLOCK_STEPS), "of the first nothing is known"
        queue.add(a_step(8 * step, size=8, width=WIDE))
    assert queue.full
    queue.drop()
    assert not queue.steps
    assert queue.room(8) == steps
    assert queue.room(7) == (3 if buffered else 55), "2.3 and 54.9 of them fit, and the next one completes it"


def test_a_block_is_complete_by_the_number_of_steps() -> None:
    queue = ScoreQueue()
    queue.reserve(2 * BLOCK_STEPS)
    for step in range(BLOCK_STEPS):
        assert not queue.full
        assert queue.room(2) == BLOCK_STEPS - step
        queue.add(a_step(2 * step))
    assert queue.full


def test_examples_of_all_ranks_wait_and_fill_the_memory() -> None:
    queue = ScoreQueue()
    queue.reserve(20)
    queue.add(a_step(0, width=WIDE), _indices(0, 1, 10, 11))
    assert queue.held(_indices(0, 1, 2, 10, 11, 12)).tolist() == [True, True, False, True, True, False]
    assert queue.meets(_indices(12, 11))
    assert not queue.meets(_indices(12, 13))
    assert queue._bytes == 4 * 2**16
    queue.reserve(50)
    assert queue.meets(_indices(11)), "room for more examples forgets none"
    queue.drop()
    assert not queue.meets(_indices(0, 1, 10, 11))


def test_steps_taken_in_together_have_their_own_examples() -> None:
    queue = ScoreQueue()
    queue.reserve(20)
    queue.copying = False
    queue.add(replace(a_step(0), indices=_indices(9, 8)))
    first, second = a_step(0, size=3), a_step(0, size=1)
    assert queue.add_together([first, second], _indices(4, 2, 6, 5), [3, 1])
    assert [step.indices.tolist() for step in queue.steps] == [[9, 8], [4, 2, 6], [5]]
    waiting = [2, 4, 5, 6, 8, 9]
    assert np.flatnonzero(queue.held(np.arange(20))).tolist() == waiting
    assert queue._bytes == 6 * first.bytes_per_example
    for wrong in ((7, 7), (7, 6)):  # named twice, and waiting already
        assert not queue.add_together([a_step(0)], _indices(*wrong), [2])
        assert np.flatnonzero(queue.held(np.arange(20))).tolist() == waiting
    assert len(queue.take()) == 3
    assert not queue.meets(np.arange(20))
    assert queue.add_together([a_step(0)], _indices(7, 6), [2])
    assert queue._bytes == 2 * first.bytes_per_example


def test_logits_are_copied_until_a_loop_is_seen_to_leave_them_alone() -> None:
    queue = ScoreQueue()
    queue.reserve(20)
    first = a_step(0)
    first.logits.mul_(1.0)
    first.version = first.logits._version  # written to before the step ended, which is nothing to worry about
    queue.add(first)
    assert queue.steps[0].inputs is first.inputs
    assert not queue.steps[0].overwritten
    first.logits.zero_()
    assert queue.steps[0].logits[0, 0] == 0.25
    queue.watch()
    assert queue.copying is True, "this loop writes into its logits"
    second = a_step(2)
    queue.add(second)
    queue.watch()
    assert queue.copying is False
    third = a_step(4)
    queue.add(third)
    assert queue.steps[2] is third
    queue.watch()
    assert queue.copying is False
    assert len(queue.take()) == 3, "copies are whole whatever becomes of the originals"
    assert queue.copying is False


@pytest.mark.parametrize("watched", [False, True])
def test_a_step_whose_logits_were_overwritten_is_left_out_and_from_then_on_they_are_copied(watched: bool) -> None:
    queue = ScoreQueue()
    queue.reserve(20)
    queue.copying = False
    first, second = a_step(0), a_step(2)
    queue.add(first)
    queue.add(second)
    second.logits.zero_()
    if watched:
        queue.watch()
        assert queue.copying is True
    assert queue.take() == [first]
    assert queue.copying is True
    queue.add(a_step(0))
    assert len(queue.take()) == 1
    assert queue.copying is True
