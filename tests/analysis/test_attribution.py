"""Held-out examples of a monitor: which are hurt most, and scores out of training, against per-example gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import NEVER, func_gradients, join_blocks, make_monitor, train_step
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sgoif import InfluenceMonitor, indexed, split_holdout
from sgoif.scoring.ledger import Ledger

ANCHORS, COUNT = 40, 12


def data(seed: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    return x, x[:, :3].argmax(1)


def watched(*, layers: str = "head", **options: Any) -> InfluenceMonitor:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    monitor = make_monitor(model, data(1, ANCHORS), layers=layers, **options)
    train_step(monitor, model, *data(2, 30))
    return monitor


def harm(monitor: InfluenceMonitor, x: Tensor, y: Tensor) -> Tensor:
    """−c_v φ_vᵀ g_i, every pair, the slow way."""
    gradient = join_blocks(monitor, func_gradients(monitor.model, x, y))
    bank = monitor.anchors
    return -(gradient @ (bank.confidence.unsqueeze(1) * bank.phi).double().T)


@pytest.mark.parametrize("layers", ["head", "all"])
@pytest.mark.parametrize("gate", ["none", "stability"])
def test_the_most_harmed_are_those_with_the_largest_products(layers: str, gate: str) -> None:
    monitor = watched(layers=layers, gate=gate, max_anchors=25)
    x, y = data(3, COUNT)
    found = monitor.most_harmed(x, y, 5)
    assert found.shape == (COUNT, 5)
    products, positions = harm(monitor, x, y), monitor.anchors.positions()
    assert bool((products > 0).any())
    for row, mine in zip(products, found.tolist(), strict=True):
        order = row.argsort(descending=True)[:5]
        assert mine == [int(positions[k]) if row[k] > 0 else -1 for k in order]


def test_more_than_there_are_is_filled_up_with_none() -> None:
    monitor = watched()
    found = monitor.most_harmed(*data(3, 2), ANCHORS + 7)
    assert found.shape == (2, ANCHORS + 7)
    assert bool((found[:, ANCHORS:] == -1).all())
    for row in found.tolist():
        listed = [position for position in row if position >= 0]
        assert len(listed) == len(set(listed))
        assert row[: len(listed)] == listed, "none comes last"


def test_nobody_is_harmed_before_there_are_directions() -> None:
    model = nn.Linear(6, 3)
    monitor = make_monitor(model, data(1, ANCHORS))
    assert bool((monitor.most_harmed(*data(3, 4), 3) == -1).all())


def test_looking_changes_nothing() -> None:
    monitor = watched()
    before = monitor.scores(), {k: v.clone() for k, v in monitor.model.state_dict().items()}, torch.get_rng_state()
    monitor.model.train()
    monitor.most_harmed(*data(3, COUNT), 4)
    monitor.anchor_record()
    assert torch.equal(torch.get_rng_state(), before[2])
    assert monitor.model.training
    assert all(torch.equal(v, before[1][k]) for k, v in monitor.model.state_dict().items())
    assert all(p.grad is None for p in monitor.model.parameters())
    np.testing.assert_array_equal(monitor.scores()["influence"], before[0]["influence"])


def test_every_held_out_example_gets_a_record_and_the_run_is_unchanged() -> None:
    monitor = watched(max_anchors=10)
    own = monitor.anchor_ledger.column("count").clone()
    assert int((own > 0).sum()) == 10
    record = monitor.anchor_record()
    assert bool((record.column("count") == 1).all())
    assert torch.equal(record.label.long(), data(1, ANCHORS)[1])
    assert torch.equal(monitor.anchor_ledger.column("count"), own)
    kept = own > 0
    assert torch.equal(record.mean("score")[kept], monitor.anchor_ledger.mean("score")[kept])
    p = torch.softmax(monitor.model(data(1, ANCHORS)[0]), 1)
    torch.testing.assert_close(record.classes.mean.float(), p.detach(), atol=1e-3, rtol=1e-3)


def test_scores_of_this_moment_are_dot_products_with_the_directions() -> None:
    monitor = watched(temperature=None, help_weight=1.0, anchor_batch=5)
    x, y = data(4, COUNT)
    ledger = Ledger(len(monitor.group_names), monitor.classes, monitor.device, COUNT)
    asked: list[int] = []

    def read(some: Tensor) -> tuple[Tensor, Tensor]:
        asked.extend(some.tolist())
        return x[some], y[some]

    monitor.held_out.score_into(ledger, torch.arange(COUNT), read)
    assert asked == list(range(COUNT))
    assert monitor.directions.psi is not None
    expected = -(join_blocks(monitor, func_gradients(monitor.model, x, y)) @ monitor.directions.psi.double().T)
    torch.testing.assert_close(ledger.groups.mean.double(), expected, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(ledger.mean("score").double(), expected.sum(1), rtol=1e-3, atol=1e-5)
    losses = nn.functional.cross_entropy(monitor.model(x), y, reduction="none").detach()
    torch.testing.assert_close(ledger.mean("loss"), losses, rtol=1e-4, atol=1e-6)


def test_nothing_to_score_leaves_the_ledger_empty() -> None:
    model = nn.Linear(6, 3)
    monitor = make_monitor(model, data(1, ANCHORS))

    def read(some: Tensor) -> tuple[Tensor, Tensor]:
        raise AssertionError("nothing should be read before there are directions")

    ledger = Ledger(3, 3, monitor.device, 4)
    monitor.held_out.score_into(ledger, torch.arange(4), read)
    assert bool((ledger.column("count") == 0).all())
    assert bool((monitor.anchor_record().column("count") == 0).all())


def test_indices_of_a_split_are_known_and_those_of_another_hold_out_are_not() -> None:
    x, y = data(5, 60)
    training, held_out = split_holdout(TensorDataset(x, y), share=0.3)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = InfluenceMonitor(model, optimizer, anchors=held_out, refresh_every=NEVER)
    assert monitor.held_out_indices().tolist() == held_out.indices  # type: ignore[union-attr]
    for inputs, labels, index in DataLoader(indexed(training), 21):
        with monitor.step(index):
            nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.zero_grad()
    assert watched().held_out_indices() is None
    found = monitor.most_harmed(x[:2], y[:2], 2)
    assert int(found.max()) < len(held_out)
