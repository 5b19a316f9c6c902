"""Scoring the layers below the head in turns: unbiased, and repeatable."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.engine.group_directions import turn_of
from sgoif.errors import SettingError


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8),
        nn.Tanh(),
        nn.Linear(8, 8),
        nn.LayerNorm(8),
        nn.Tanh(),
        nn.Linear(8, 7),
        nn.Tanh(),
        nn.Linear(7, 3),
    )


def data(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 6, generator=generator), torch.randint(3, (count,), generator=generator)


def influences(share: float, steps: int) -> Tensor:
    """Raw influences of the same batch at the same weights in every step after the first, [steps, B]."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    monitor = InfluenceMonitor(
        network, optimizer, anchors=data(30), layers="all", body_share=share, refresh_every=10**6, curvature_every=10**6
    )
    x, y = data(12)
    found = []
    for _ in range(steps + 1):
        with monitor.step(range(12)):
            nn.functional.cross_entropy(network(x), y).backward()
        assert monitor.last is not None
        found.append(monitor.last.influence)
    return torch.stack(found[1:])


def test_the_mean_over_turns_is_the_whole_score() -> None:
    whole = influences(1.0, 1)[0]
    each = influences(0.5, 60)
    turns = torch.unique(each, dim=0)
    assert len(turns) == 2, "four layers below the head in two turns"
    torch.testing.assert_close(turns.mean(0), whole, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(turns[0], whole)


def test_turns_are_random_but_repeatable() -> None:
    first, second = influences(0.25, 40), influences(0.25, 40)
    assert torch.equal(first, second)
    _, counts = torch.unique(first, dim=0, return_counts=True)
    assert len(counts) == 4
    assert np.abs(counts.numpy() - 10).max() < 9


def test_a_head_alone_has_no_turns() -> None:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = InfluenceMonitor(network, optimizer, anchors=data(30), body_share=0.25)
    x, y = data(12)
    with monitor.step(range(12)):
        nn.functional.cross_entropy(network(x), y).backward()
    assert np.isfinite(monitor.scores()["influence"]).all()


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_bad_shares(share: float) -> None:
    network = model()
    with pytest.raises(SettingError, match="body_share"):
        InfluenceMonitor(network, torch.optim.SGD(network.parameters(), lr=0.1), anchors=data(9), body_share=share)


def test_turns_are_even_repeatable_and_change_with_the_seed() -> None:
    turns = [turn_of(step, 8, seed=3) for step in range(4000)]
    assert turns == [turn_of(step, 8, seed=3) for step in range(4000)]
    assert turns != [turn_of(step, 8, seed=4) for step in range(4000)]
    counts = [turns.count(turn) for turn in range(8)]
    assert min(counts) > 400, "500 expected, deviation 21"
    assert max(counts) < 600
