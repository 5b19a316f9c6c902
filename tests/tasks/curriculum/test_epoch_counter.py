"""Counting epochs from the indices of batches."""

from __future__ import annotations

import numpy as np

from sgoif.tasks.curriculum.epoch_counter import EpochCounter


def feed(epoch_counter: EpochCounter, *batches: list[int]) -> None:
    for batch in batches:
        epoch_counter.add(np.array(batch))


def test_an_epoch_ends_when_an_example_comes_back() -> None:
    epoch_counter = EpochCounter()
    feed(epoch_counter, [0, 1], [5, 3])
    assert epoch_counter.epochs == 0
    assert not epoch_counter.is_due(np.array([2, 4]), 1, 1)  # the first epoch goes on
    assert epoch_counter.is_due(np.array([1, 7]), 1, 1)
    assert not epoch_counter.is_due(np.array([1, 7]), 2, 1)
    feed(epoch_counter, [3, 1])
    assert epoch_counter.epochs == 1.5
    feed(epoch_counter, [0, 5])
    assert epoch_counter.is_due(np.array([0, 1]), 2, 1)


def test_judgements_are_as_far_apart_as_asked() -> None:
    epoch_counter = EpochCounter()
    feed(epoch_counter, [0, 1], [2, 3], [0, 1], [2, 3])
    epoch_counter.mark_judgement()
    assert not epoch_counter.is_due(np.array([0, 1]), 1, 1)
    feed(epoch_counter, [0, 1])
    assert epoch_counter.is_due(np.array([2, 3]), 1, 0.5)
    assert not epoch_counter.is_due(np.array([2, 3]), 1, 1)
    feed(epoch_counter, [2, 3])
    assert epoch_counter.is_due(np.array([0, 1]), 1, 1)


def test_large_indices_and_duplicates() -> None:
    epoch_counter = EpochCounter()
    feed(epoch_counter, [1000, 1000], [3])
    assert epoch_counter.size == 1001
    assert epoch_counter.different == 2
    assert epoch_counter.asked == 3


def test_state() -> None:
    epoch_counter = EpochCounter()
    feed(epoch_counter, [0, 1], [7, 3], [1, 0])
    epoch_counter.mark_judgement()
    again = EpochCounter.from_state(epoch_counter.state_dict())
    for name in ("asked", "different", "judged", "size", "epochs"):
        assert getattr(again, name) == getattr(epoch_counter, name)
    for batch in ([3, 9], [0, 1]):
        assert again.is_due(np.array(batch), 1, 0.1) == epoch_counter.is_due(np.array(batch), 1, 0.1)
        feed(again, batch)
        feed(epoch_counter, batch)
    assert again.different == epoch_counter.different == 5
