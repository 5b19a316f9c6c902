"""Steps that wait for their block, and how a block is put together."""

from __future__ import annotations

import numpy as np
import torch

from sgoif.checks import Indices
from sgoif.scoring import Observation, gather


def _indices(*values: int) -> Indices:
    return np.array(values, dtype=np.int64)


def test_a_tensor_that_steps_hold_twice_is_joined_once() -> None:
    def step(start: int, same: bool) -> Observation:
        delta = torch.arange(start, start + 4.0).view(2, 2)
        other = delta if same else delta + 100
        return Observation(_indices(start, start + 1), delta + 10, delta, delta + 20, other, None, None)

    joined, sizes = gather([step(0, True), step(2, True)])
    assert joined.logits_delta is joined.delta
    assert sizes == [2, 2]
    torch.testing.assert_close(joined.delta, torch.cat([step(0, True).delta, step(2, True).delta]))
    mixed, _ = gather([step(0, True), step(2, False)])
    torch.testing.assert_close(mixed.delta[2:], mixed.logits_delta[2:] + 100)
