"""The health of a run: each thing that can be wrong with it, and only that."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.analysis.health import Health, support
from sgoif.errors import HealthWarning
from sgoif.scoring.ledger import Ledger

CLASSES, COUNT, BATCH = 3, 96, 16
NAMES = ["curvature", "anchors", "gate", "learning", "run"]


def data(count: int, seed: int, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    return torch.randn(count, 6, generator=generator) + 3 * F.one_hot(labels, 6), labels


def trained(steps: int = 60, *, anchors: Any = None, rate: float = 0.1, **options: Any) -> InfluenceMonitor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    monitor = InfluenceMonitor(model, optimizer, anchors or data(60, 1), **options)
    x, y = data(COUNT, 2)
    y[::5] = (y[::5] + 1) % CLASSES
    rows = itertools.cycle(torch.arange(COUNT).split(BATCH))
    for _ in range(steps):
        index = next(rows)
        optimizer.zero_grad()
        with monitor.step(index):
            F.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()
    return monitor


def problems(health: Health) -> dict[str, str]:
    return {check.name: check.sentence for check in health.warnings}


def test_a_run_that_is_well() -> None:
    monitor = trained()
    health = monitor.health()
    assert [check.name for check in health.checks] == NAMES
    assert problems(health) == {}
    assert all(check.state == "good" for check in health.checks)
    assert health.checks[1].sentence == "60, 20 or more a group"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor.scores()


def test_printed_it_is_a_line_for_each_check_and_repr_is_not() -> None:
    monitor = trained()
    first, *lines = str(monitor).splitlines()
    assert first == "60 steps"
    assert [line.split()[:2] for line in lines] == [[name, "good"] for name in NAMES]
    assert repr(monitor).startswith("<")


def test_before_the_first_step() -> None:
    assert problems(trained(0).health()) == {"run": "nothing was scored yet: train within `with monitor.step(index)`"}


def test_a_curvature_that_saw_few_batches() -> None:
    found = problems(trained(curvature_every=32).health())
    assert found["curvature"].startswith("learned from 2 batches, too few for its memory")
    assert "curvature" not in problems(trained(curvature_every=32, decay=0.0).health())


def test_few_anchors() -> None:
    x, y = data(60, 1)
    found = problems(trained(anchors=(x[:30], y[:30])).health())
    assert found == {"anchors": "30, fewer than 50: hold out a larger share, split_holdout(dataset, share=...)"}


def test_groups_and_classes_with_few_anchors_are_named() -> None:
    x, y = data(90, 1)
    kept = torch.cat([torch.arange(90)[y != 1], torch.arange(90)[y == 1][:3]])
    assert problems(trained(anchors=(x[kept], y[kept])).health())["anchors"].startswith("63, fewer than 5 of 1:")
    kept = y != 2
    assert problems(trained(anchors=(x[kept], y[kept])).health())["anchors"].startswith("60, none of class 2:")


def test_a_gate_that_is_closed() -> None:
    found = problems(trained(kappa=1e-9, tolerance_by_group=False).health())
    assert found["gate"].startswith("0% of the anchors pass")


def test_a_model_that_learned_nothing() -> None:
    found = problems(trained(rate=1e-6).health())
    assert "of a guess 1.1: train for longer" in found["learning"]


def test_a_run_in_which_examples_were_seen_once() -> None:
    assert "fewer than 30 examples were seen twice" in problems(trained(6).health())["run"]


def test_scores_warn_once_and_name_what_is_not_well() -> None:
    monitor = trained(6)
    with pytest.warns(HealthWarning, match="run: fewer than 30 examples") as caught:
        monitor.scores()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor.scores()


def test_the_share_that_is_more_than_chance_is_that_of_the_variance_between_examples() -> None:
    generator = torch.Generator().manual_seed(0)
    examples, looks = 4000, 8
    quality = torch.randn(examples, generator=generator)
    ledger = Ledger(1, CLASSES, torch.device("cpu"), examples)
    everyone, ones = torch.arange(examples), torch.ones(examples)
    for _ in range(looks):
        score = quality + 4 * torch.randn(examples, generator=generator)
        values = torch.stack([score, ones, ones, ones, ones, ones], 1)
        rows = score.unsqueeze(1), torch.full((examples, CLASSES), 1 / CLASSES)
        ledger.add(everyone, values, *rows, torch.zeros(examples, dtype=torch.long), ones.bool(), 1.0)
    assert support(ledger) == pytest.approx(1 / (1 + 16 / looks), abs=0.03)
    assert support(Ledger(1, CLASSES, torch.device("cpu"), examples)) is None


def test_values_have_no_classes_to_miss() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(6, 1), data(COUNT, 2)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    anchors = data(60, 1)[0]
    monitor = InfluenceMonitor(model, optimizer, (anchors, anchors[:, :1]), loss=nn.MSELoss())
    y = x[:, :1] + torch.randn(COUNT, 1)
    for _ in range(20):
        for index in torch.arange(COUNT).split(BATCH):
            optimizer.zero_grad()
            with monitor.step(index, target=y[index]):
                F.mse_loss(model(x[index]), y[index]).backward()
            optimizer.step()
    assert problems(monitor.health()) == {}
