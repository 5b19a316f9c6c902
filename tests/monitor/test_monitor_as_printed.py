"""`Settings.as_printed` against algorithm 1 of the paper, line by line, written down with dense matrices."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.settings import Settings
from sgoif.stability.bounds import coverage

TRAINING, HELD, CLASSES, BATCH = 60, 24, 3, 12
RATE, DECAY = 0.05, 0.01


def made(**changes: Any) -> tuple[InfluenceMonitor, Tensor, Tensor]:
    torch.manual_seed(1)
    labels = torch.arange(TRAINING + HELD) % CLASSES
    inputs = torch.randn(CLASSES, 5)[labels] + torch.randn(len(labels), 5)
    model = nn.Linear(5, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, weight_decay=DECAY)
    settings = Settings.as_printed(**changes)
    anchors = inputs[TRAINING:], labels[TRAINING:]
    return InfluenceMonitor(model, optimizer, anchors, size=TRAINING, settings=settings), inputs, labels


def gradients(model: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
    """Gradients of single examples, [B, P], as the monitor lays them out: weights and bias of a class side by side."""
    delta = model(x).detach().softmax(1) - nn.functional.one_hot(y, CLASSES)
    return torch.einsum("br,bc->brc", delta, torch.cat([x, torch.ones(len(x), 1)], 1)).flatten(1)


def test_a_run_is_algorithm_1() -> None:
    kappa, gamma = 2000.0, (2.0, 3.0)
    plain = {"replace_every": 0, "coverage_floor": 0.0, "temperature": None, "residual_budget": None, "steer": False}
    monitor, inputs, labels = made(kappa=kappa, gamma=gamma, rank=4, rank_every=3, **plain)
    model = monitor.model
    assert isinstance(model, nn.Linear)
    order = monitor.anchors.positions()
    held, truth = inputs[TRAINING:][order], labels[TRAINING:][order]
    phi = torch.zeros(HELD, monitor.layout.size)  # line 1
    norm, weight, gated = 0.0, 0.0, 0
    for t in range(12):  # line 2
        rows = torch.arange(t * BATCH, (t + 1) * BATCH) % TRAINING
        with monitor.step(rows):  # line 3
            nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        identity = torch.eye(monitor.layout.size)
        h, spectrum = monitor.curvature.matvec(identity), monitor.curvature.spectrum()
        g = gradients(model, held, truth)  # line 4
        rho = (t + 1) ** -0.6 / spectrum.largest
        phi = phi + rho * (g - phi @ h)
        residual = g - phi @ h
        mine = gradients(model, inputs[rows], labels[rows])
        norm, weight = 0.98 * norm + 0.02 * float(mine.norm(dim=1).mean()), 0.98 * weight + 0.02
        beta = (gamma[0] * RATE * norm / weight + gamma[1] * DECAY) / TRAINING
        tau = kappa * beta * spectrum.largest / spectrum.smallest
        c = (1 - residual.norm(dim=1) / tau).clamp(0, 1)
        gated += int(((c > 0) & (c < 1)).sum())
        scores = -(mine @ (c / c.sum() * c @ phi))  # line 5, with the weights of equation 5 and the sign of equation 1
        last = monitor.last
        assert last is not None
        torch.testing.assert_close(last.influence, scores, rtol=1e-3, atol=1e-5)
        assert monitor.history[-1]["tau"] == pytest.approx(tau, rel=1e-4)
        monitor.optimizer.step()
        monitor.optimizer.zero_grad()
    assert gated > HELD, "the gate has to be in use for this to say anything"
    assert len(monitor.history) == 12


def trained(steps: int, looking: bool = False, **changes: Any) -> InfluenceMonitor:
    monitor, inputs, labels = made(**changes)
    for t in range(steps):
        rows = torch.arange(t * BATCH, (t + 1) * BATCH) % TRAINING
        with monitor.step(rows):
            nn.functional.cross_entropy(monitor.model(inputs[rows]), labels[rows]).backward()
        if looking:
            monitor.flush()
        monitor.optimizer.step()
        monitor.optimizer.zero_grad()
    return monitor


@pytest.mark.filterwarnings("ignore::sgoif.errors.HealthWarning")
def test_every_step_is_scored_by_the_directions_of_that_step_whoever_looks() -> None:
    plain, looked = trained(9).scores(), trained(9, looking=True).scores()
    assert plain["influence"].tolist() == looked["influence"].tolist()


def test_anchors_are_replaced_every_so_many_steps() -> None:
    usual = {"max_anchors": 10, "replace_share": 0.2, "coverage_floor": 0.0}
    monitor = trained(12, replace_every=5, **usual)
    assert [entry["replaced"] for entry in monitor.history] == [0] * 6 + [2] * 5 + [4]
    sparse = trained(12, replace_every=5, refresh_every=4, **usual)
    assert [(entry["step"], entry["replaced"]) for entry in sparse.history] == [(0, 0), (4, 0), (8, 0)]
    assert sparse.anchors.replaced == 2
    usually = trained(9, replace_every=None, **usual)
    assert [entry["replaced"] for entry in usually.history] == [0] * 4 + [2] * 4 + [4], "at every fourth refresh"


def test_low_coverage_of_the_anchors_replaces_some() -> None:
    usual = {"max_anchors": 10, "replace_share": 0.2, "replace_every": 0}
    monitor = trained(3, coverage_floor=1.0, **usual)
    assert [entry["replaced"] for entry in monitor.history] == [0, 2, 4]
    assert not monitor.schedule.urgent
    monitor = trained(3, coverage_floor=0.0, **usual)
    assert monitor.anchors.replaced == 0
    assert monitor.history[-1]["coverage"] == pytest.approx(coverage(monitor.anchors.phi))


def test_kappa_is_set_in_the_first_epoch_and_stays() -> None:
    monitor = trained(12, refresh_every=1)
    kappas = [entry["kappa"] for entry in monitor.history]
    assert len(set(kappas[:5])) > 2
    assert len(set(kappas[5:])) == 1
    assert len({entry["tau"] for entry in monitor.history[5:]}) > 2


def test_what_the_paper_names_can_be_changed_one_by_one() -> None:
    assert Settings.as_printed(kappa=3.0).kappa_memory == 0
    assert Settings.as_printed(refine=False).refine_outside is False
    assert Settings.as_printed(solver="neumann").step_decay == 0
    assert Settings.as_printed(rank=5).curvature == "lowrank"
    assert math.isinf(Settings.as_printed().kappa_memory)
