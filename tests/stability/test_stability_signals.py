"""The paper's further signals at a refresh, and the rank that they give a low-rank curvature."""

from __future__ import annotations

import pytest
import torch
from bank_cases import monitored, problem, train

from sgoif.stability.probes import gradient_energy


@pytest.mark.parametrize("rank", [4, 8])
def test_the_rank_of_a_low_rank_curvature_follows_what_it_sees(rank: int) -> None:
    inputs, labels = problem()
    options = {"curvature": "lowrank", "curvature_every": 1, "rank": rank, "refresh_every": 3}
    monitor = monitored((inputs[80:], labels[80:]), **options)
    train(monitor, inputs, labels, torch.arange(80), steps=9)
    energy = monitor.history[-1]["energy"]
    assert 0 < energy < 1
    wanted = round(rank * min(2.0, max(0.5, 1.5 - energy)))
    assert monitor.curvature.rank == wanted != rank
    fixed = monitored((inputs[80:], labels[80:]), steer=False, **options)
    train(fixed, inputs, labels, torch.arange(80), steps=9)
    assert fixed.curvature.rank == rank


def test_signals_are_recorded_and_their_products_are_counted() -> None:
    inputs, labels = problem()
    monitor = monitored((inputs[80:], labels[80:]), curvature="diagonal", refresh_every=1, solver_steps=1)
    train(monitor, inputs, labels, torch.arange(80), steps=3)
    last = monitor.history[-1]
    assert last["gap"] > 0
    assert last["probe_variance"] >= 0
    anchors, probed, terms = 40, 8, 3
    assert last["products"] >= 2 * anchors + 2 * (terms - 1) * probed + 1


def test_the_energy_is_that_of_the_gradients_in_the_basis() -> None:
    basis = torch.eye(5)[:2]
    assert gradient_energy(basis, torch.ones(1, 5)).item() == pytest.approx(0.4)
