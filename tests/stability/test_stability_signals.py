"""The paper's further signals at a refresh, and the rank that they give a low-rank curvature."""

from __future__ import annotations

import math

import pytest
import torch
from bank_cases import CPU, monitored, problem, train

from sgoif.core.parameter_layout import Block, Layout
from sgoif.curvature.base import Factors, Spectrum
from sgoif.curvature.lowrank import LowRankDiagonal
from sgoif.distributed.communicator import SINGLE_PROCESS
from sgoif.solvers import LowRankSplit, Richardson
from sgoif.stability.controller import StabilityController
from sgoif.stability.probes import curvature_probe, gradient_energy, iterate_gap
from sgoif.stability.signals import observe_signals


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


class Counted:
    """A dense operator that counts its products."""

    def __init__(self) -> None:
        factor = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
        self.matrix, self.calls = factor @ factor.T + torch.eye(6), 0

    def matvec(self, vectors: torch.Tensor) -> torch.Tensor:
        self.calls += len(vectors)
        return vectors @ self.matrix

    def diagonal(self) -> torch.Tensor:
        return self.matrix.diagonal()

    def spectrum(self) -> Spectrum:
        values = torch.linalg.eigvalsh(self.matrix)
        return Spectrum(float(values[0]), float(values[-1]))


def controlled() -> StabilityController:
    return StabilityController(kappa=None, pass_quantile=0.5, gamma=(1.0, 1.0), device=CPU)


@pytest.mark.parametrize("anchors", [1, 5, 11])
def test_a_refresh_probes_eight_anchors_at_most_with_the_vector_of_its_seed(anchors: int) -> None:
    operator, controller, solver = Counted(), controlled(), Richardson()
    gradients = torch.randn(anchors, 6, generator=torch.Generator().manual_seed(2))
    used = observe_signals(controller, operator, solver, gradients, 3, SINGLE_PROCESS, 4)
    assert used == operator.calls
    assert controller.signals.gap == pytest.approx(float(iterate_gap(operator, gradients[:8], 3).mean()))
    assert controller.probes.mean == pytest.approx(float(curvature_probe(operator, gradients[0], 1, seed=3)))
    assert controller.probes.count == 1
    assert math.isnan(controller.signals.energy), "this solver has no subspace"


def test_the_energy_is_that_of_the_solver_where_it_keeps_a_subspace() -> None:
    operator, controller, solver = Counted(), controlled(), LowRankSplit(rank=2)
    gradients = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
    solver.solve(operator, gradients)
    observe_signals(controller, operator, solver, gradients, 0, SINGLE_PROCESS, 4)
    assert controller.signals.energy == pytest.approx(solver.last_energy)
    assert 0 < solver.last_energy < 1


def test_a_basis_that_sees_everything_is_steered_down_to_one_direction() -> None:
    curvature = LowRankDiagonal(Layout((Block("head", 2, 3),)), rank=2)
    one = torch.ones(4, 1, 3), torch.ones(4, 1, 2)
    curvature.update([Factors(*one, False)])
    controller, gradients = controlled(), torch.ones(4, 6)
    observe_signals(controller, curvature, Richardson(), gradients, 0, SINGLE_PROCESS, 2)
    assert controller.signals.energy == pytest.approx(1)
    assert curvature.rank == 1
