"""The stability controller: proxy, tolerance, the ways of κ, and what it asks of the solver."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sgoif.solvers.base import Control
from sgoif.stability.controller import LAG, StabilityController

CPU = torch.device("cpu")
RESIDUAL = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, torch.inf])


def made(kappa: float | None = None, **options: Any) -> StabilityController:
    known: dict[str, Any] = {"pass_quantile": 0.5, "gamma": (1.0, 1.0), "device": CPU}
    return StabilityController(kappa=kappa, **{**known, **options})


def test_the_proxy_is_equation_2() -> None:
    controller = made(gamma=(2.0, 3.0))
    controller.observe(torch.tensor([4.0, 6.0]))
    assert controller.proxy(0.1, 0.01, 50) == pytest.approx((2 * 0.1 * 5 + 3 * 0.01) / 50)
    assert controller.proxy(0.2, 0.01, 50) > controller.proxy(0.1, 0.01, 50)
    assert controller.proxy(0.0, 0.0, 50) > 0, "a zero learning rate must not close the gate"


def test_a_fixed_kappa_makes_the_tolerance_equation_3() -> None:
    controller = made(7.0)
    found = controller.tolerance(RESIDUAL, 0.02, 30.0)
    assert (found.kappa, found.beta, found.condition) == (7.0, 0.02, 30.0)
    assert found.tau == pytest.approx(7 * 0.02 * 30)
    controller.sign = -1
    assert controller.tolerance(RESIDUAL, 0.02, 30.0).tau == pytest.approx(7 / (0.02 * 30))


def test_a_tracked_kappa_lets_the_wanted_share_pass_whatever_the_proxy() -> None:
    controller = made()
    assert controller.tolerance(RESIDUAL, 0.02, 30.0).tau == pytest.approx(3)
    other = made()
    assert other.tolerance(RESIDUAL, 1e-6, 5.0).tau == pytest.approx(3)
    assert made(pass_quantile=0.75).tolerance(RESIDUAL, 0.02, 30.0).tau == pytest.approx(4)


@pytest.mark.parametrize(("factor", "expected"), [(1.2, 1.1), (10.0, 10 / LAG), (0.1, 0.1 * LAG)])
def test_the_tolerance_is_smoothed_but_never_far_from_the_newest(factor: float, expected: float) -> None:
    controller = made()
    controller.tolerance(RESIDUAL, 0.02, 30.0)
    assert controller.tolerance(factor * RESIDUAL, 0.5, 2.0).tau == pytest.approx(3 * expected)


@pytest.mark.parametrize("memory", [0.5, 4.0, math.inf])
def test_with_a_memory_kappa_tracks_for_an_epoch_and_then_follows_slowly(memory: float) -> None:
    controller = made(memory=memory)
    for epochs in (0.0, 0.4, 0.9):
        kappa = controller.tolerance(RESIDUAL, 0.1 * (1 + epochs), 10.0, epochs).kappa
        assert kappa == pytest.approx(3 / (1 + epochs))
    later = controller.tolerance(RESIDUAL, 0.3, 10.0, 1.5)
    left = math.exp(-0.5 / memory)
    assert later.kappa == pytest.approx((3 / 1.9) ** left * 1 ** (1 - left))
    assert later.tau == pytest.approx(later.kappa * 0.3 * 10)


def test_a_memory_is_in_the_state() -> None:
    one, other = made(memory=2.0), made(memory=2.0)
    for epochs in (0.5, 1.5):
        one.tolerance(RESIDUAL, 0.1 * epochs, 10.0, epochs)
    other.load_state_dict(one.state_dict())
    assert one.tolerance(RESIDUAL, 0.4, 10.0, 3.0) == other.tolerance(RESIDUAL, 0.4, 10.0, 3.0)


def test_after_the_first_epoch_kappa_moves_between_its_own_and_the_wanted_in_the_logarithm() -> None:
    controller = made(memory=2.0)
    controller.tolerance(RESIDUAL, 0.1, 10.0, 0.5)  # κ = 3
    assert controller.tolerance(RESIDUAL, 0.05, 10.0, 1.0).kappa == pytest.approx(3), "an epoch old, it begins to lag"
    left = math.exp(-1 / 2)
    assert controller.tolerance(RESIDUAL, 0.05, 10.0, 2.0).kappa == pytest.approx(3**left * 6 ** (1 - left))


def test_a_kappa_that_remembers_tracks_where_no_epochs_are_told() -> None:
    controller = made(memory=2.0)
    assert [controller.tolerance(RESIDUAL, beta, 10.0).kappa for beta in (0.1, 0.2)] == pytest.approx([3, 1.5])


def test_before_anything_was_seen_the_tolerance_is_the_proxy_and_weight_decay_alone_counts() -> None:
    controller = made(gamma=(2.0, 3.0))
    assert controller.proxy(0.1, 0.01, 50) == pytest.approx(3 * 0.01 / 50)
    assert controller.proxy(0.1, 0.01, 1) == controller.proxy(0.1, 0.01, 0) == pytest.approx(3 * 0.01)
    assert controller.tolerance(torch.full((3,), torch.inf), 0.02, 30.0).tau == pytest.approx(0.02 * 30)
    assert controller.kappa is None
    assert controller.control() == Control(depth=1, step=1, rank=1 / 2)


@pytest.mark.parametrize("seen", [0, 1, 3])
def test_it_goes_on_from_its_state(seen: int) -> None:
    one, other = made(), made()
    for step in range(seen):
        one.observe(torch.tensor([1.0 + step, 2.0]))
        one.tolerance((1 + 0.1 * step) * RESIDUAL, 0.1, 10.0)
        one.observe_signals(gap=0.2 + step, probe=1.0 + step, energy=0.4)
    other.load_state_dict(one.state_dict())
    assert (other.kappa, other.target) == (one.kappa, one.target)
    assert (other.kappa is None) == (seen == 0)
    for controller in (one, other):
        controller.observe(torch.tensor([5.0]))
        controller.observe_signals(gap=0.3, probe=2.0, energy=0.1)
    assert other.proxy(0.1, 0.0, 10) == one.proxy(0.1, 0.0, 10)
    assert other.signals == one.signals
    assert other.control() == one.control()
    assert other.tolerance(1.3 * RESIDUAL, 0.1, 10.0) == one.tolerance(1.3 * RESIDUAL, 0.1, 10.0)


def test_gradient_norms_are_kept_where_the_model_is() -> None:
    assert made(device=torch.device("meta")).gradient_norm.device.type == "meta"


def steering(**signals: float) -> Control:
    controller = made()
    nothing = {"gap": math.nan, "probe": math.nan, "energy": math.nan}
    controller.observe_signals(**{**nothing, **signals})
    return controller.control()


def test_signals_steer_depth_step_and_rank() -> None:
    assert steering() == Control(depth=1, step=1, rank=1 / 2)
    assert steering(gap=0.5).depth == pytest.approx(1.5)
    assert steering(gap=7.0).depth == 2
    assert steering(energy=0.8).rank == pytest.approx(0.7)
    assert steering(energy=0.0).rank == 1.5, "what the basis does not see asks for more of it"


def test_a_spread_of_probes_shortens_steps_and_depth() -> None:
    controller = made()
    for probe in (1.0, 2.0):
        controller.observe_signals(gap=1.0, probe=probe, energy=1.0)
    variance = controller.signals.variance
    assert variance > 0
    assert controller.control().step == pytest.approx(1 / (1 + variance))
    assert controller.control().depth == pytest.approx(2 / (1 + variance))
    for probe in (100.0, -100.0, 100.0):
        controller.observe_signals(gap=0.0, probe=probe, energy=1.0)
    assert controller.control().step == 0.5, "never less than half"


def test_signals_are_smoothed_and_what_is_not_finite_is_left_out() -> None:
    controller = made()
    controller.observe_signals(gap=0.2, probe=1.0, energy=0.4)
    controller.observe_signals(gap=0.6, probe=math.inf, energy=math.nan)
    assert controller.signals.gap == pytest.approx(0.4)
    assert controller.signals.energy == pytest.approx(0.4)
    controller.observe_signals(gap=math.inf, probe=1.0, energy=math.nan)
    assert controller.signals.gap == pytest.approx(0.4)


def test_nothing_is_steered_where_that_is_off() -> None:
    controller = made(steer=False)
    controller.observe_signals(gap=1.0, probe=1.0, energy=0.1)
    assert controller.control() == Control()


def test_the_residual_budget_is_a_share_of_the_tolerance() -> None:
    fixed = made(7.0, residual_budget=0.5)
    assert fixed.control().budget == 0
    assert fixed.control(0.02, 30.0).budget == pytest.approx(0.5 * 7 * 0.02 * 30)
    tracked = made(residual_budget=0.5)
    assert tracked.control(0.02, 30.0).budget == 0, "before the first refresh nothing is known"
    tracked.tolerance(RESIDUAL, 0.02, 30.0)
    assert tracked.control(0.5, 2.0).budget == pytest.approx(1.5)
    remembering = made(residual_budget=0.5, memory=1.0)
    remembering.tolerance(RESIDUAL, 0.02, 30.0)
    assert remembering.control(0.04, 30.0).budget == pytest.approx(3)
    assert made(7.0).control(0.02, 30.0).budget == 0
    assert fixed.control(0.02).budget == pytest.approx(0.5 * 7 * 0.02), "of a curvature without a spread"
    fixed.sign = -1
    assert fixed.control(0.02, 30.0).budget == pytest.approx(0.5 * 7 / (0.02 * 30))
