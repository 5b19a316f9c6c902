"""Counting epochs from the indices of batches."""

from __future__ import annotations

import numpy as np

from sgoif.tasks.curriculum.passes import Passes


def feed(passes: Passes, *batches: list[int]) -> None:
    for batch in batches:
        passes.add(np.array(batch))


def test_an_epoch_ends_when_an_example_comes_back() -> None:
    passes = Passes()
    feed(passes, [0, 1], [5, 3])
    assert passes.epochs == 0
    assert not passes.due(np.array([2, 4]), 1, 1)  # the first epoch goes on
    assert passes.due(np.array([1, 7]), 1, 1)
    assert not passes.due(np.array([1, 7]), 2, 1)
    feed(passes, [3, 1])
    assert passes.epochs == 1.5
    feed(passes, [0, 5])
    assert passes.due(np.array([0, 1]), 2, 1)


def test_judgements_are_as_far_apart_as_asked() -> None:
    passes = Passes()
    feed(passes, [0, 1], [2, 3], [0, 1], [2, 3])
    passes.mark()
    assert not passes.due(np.array([0, 1]), 1, 1)
    feed(passes, [0, 1])
    assert passes.due(np.array([2, 3]), 1, 0.5)
    assert not passes.due(np.array([2, 3]), 1, 1)
    feed(passes, [2, 3])
    assert passes.due(np.array([0, 1]), 1, 1)


def test_large_indices_and_duplicates() -> None:
    passes = Passes()
    feed(passes, [1000, 1000], [3])
    assert passes.size == 1001
    assert passes.different == 2
    assert passes.asked == 3


def test_state() -> None:
    passes = Passes()
    feed(passes, [0, 1], [7, 3], [1, 0])
    passes.mark()
    again = Passes.from_state(passes.state_dict())
    for name in ("asked", "different", "judged", "size", "epochs"):
        assert getattr(again, name) == getattr(passes, name)
    for batch in ([3, 9], [0, 1]):
        assert again.due(np.array(batch), 1, 0.1) == passes.due(np.array(batch), 1, 0.1)
        feed(again, batch)
        feed(passes, batch)
    assert again.different == passes.different == 5
