"""What monitoring costs, and what a budget keeps to."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from refresh_loop import Clock, run, set_clock, tiny
from torch import nn

from sgoif import InfluenceMonitor
from sgoif.engine.refresh_schedule import RefreshSchedule
from sgoif.engine.time_budget import LONGEST_STRIDE, WARM_UP, TimeBudget

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return set_clock(monkeypatch)


@pytest.mark.parametrize("budget", [0.01, 0.05, 0.2])
def test_share_of_time_stays_within_the_budget(clock: Clock, budget: float) -> None:
    schedule = RefreshSchedule(None, TimeBudget(budget, CPU), 100)
    refreshed = run(schedule, 4000, 32, 1000, clock, train=0.1, refresh=0.8, score=0.0001)
    assert 0.8 * budget <= schedule.time.share <= budget * (1 + 1e-9), "what may be spent is spent"
    assert len(refreshed) >= 3
    assert schedule.time.stride == 1


def test_dear_scoring_is_thinned_out_to_half_the_budget(clock: Clock) -> None:
    schedule = RefreshSchedule(None, TimeBudget(0.05, CPU), 100)
    run(schedule, 3000, 32, 1000, clock, train=0.1, refresh=0.1, score=0.02)
    assert schedule.time.stride == pytest.approx(0.2 / 0.025, abs=1)
    assert schedule.time.share <= 0.05 * 1.02
    assert schedule.refreshes > 10, "scoring leaves room for refreshes"


@pytest.mark.parametrize("cold", [1.0, 30.0])
def test_what_the_first_steps_take_is_not_paid_off(clock: Clock, cold: float) -> None:
    """On a GPU the first step and the first refresh load kernels, which takes as long as hundreds of steps."""
    schedule = RefreshSchedule(None, TimeBudget(0.05, CPU), 100)
    run(schedule, 1, 32, 1000, clock, train=0.01 + cold, refresh=cold, score=cold)
    refreshed = [run_on for run_on in range(1, 2000) if _one(schedule, run_on, clock)]
    assert refreshed[0] == WARM_UP - 1
    assert len(refreshed) > 10
    assert np.diff(refreshed).max() < 400, "and as steadily as without them"
    assert schedule.time.stride <= 3
    assert schedule.time.share <= 0.05 * 1.02


def _one(schedule: RefreshSchedule, step: int, clock: Clock) -> bool:
    """A warm step of 10 ms that takes half a millisecond to score, with refreshes of 20 ms; whether there was one."""
    before = schedule.refreshes
    schedule.time.begin()
    clock.now += 0.01
    scored = step % schedule.time.stride == 0
    if scored and schedule.due(32, 1000):
        schedule.refreshing()
        clock.now += 0.02
        schedule.time.refreshed(0.02)
    seconds = 0.0005 if scored else 0.00005
    clock.now += seconds
    schedule.time.account(seconds, scored=scored)
    schedule.end(32)
    return schedule.refreshes > before


def test_steps_without_scores_cost_something_too(clock: Clock) -> None:
    schedule = RefreshSchedule(None, TimeBudget(0.05, CPU), 100)
    run(schedule, 6000, 32, 1000, clock, train=0.1, refresh=0.1, score=0.02, passing=0.001)
    assert schedule.time.stride == pytest.approx((0.2 - 0.01) / (0.025 - 0.01), abs=1)
    assert schedule.time.share <= 0.05 * 1.02


def test_a_budget_that_watching_alone_exceeds_still_scores_now_and_then(clock: Clock) -> None:
    schedule = RefreshSchedule(None, TimeBudget(0.01, CPU), 100)
    run(schedule, 6000, 32, 1000, clock, train=0.1, score=0.02, passing=0.001)
    assert schedule.time.stride == LONGEST_STRIDE


def test_time_between_parts_of_a_training_can_be_left_out(clock: Clock) -> None:
    schedule = RefreshSchedule(None, TimeBudget(0.05, CPU), 100)
    run(schedule, 10, 32, 1000, clock, train=0.1)
    schedule.time.end(0)
    clock.now += 7.0
    schedule.time.resume(*schedule.time.counts_and_times())
    run(schedule, 10, 32, 1000, clock, train=0.1)
    assert schedule.time.elapsed == pytest.approx(2.0)


def test_a_budget_that_scoring_fits_keeps_every_step(clock: Clock) -> None:
    schedule = RefreshSchedule(None, TimeBudget(0.5, CPU), 100)
    run(schedule, 200, 32, 1000, clock, train=0.1, refresh=0.1, score=0.02)
    assert schedule.time.stride == 1
    assert schedule.time._scored == 200 - WARM_UP


def test_a_refresh_too_dear_for_the_run_happens_in_the_warm_up_alone(clock: Clock) -> None:
    schedule = RefreshSchedule(None, TimeBudget(0.01, CPU), 100)
    assert run(schedule, 500, 32, 1000, clock, train=0.1, refresh=1.0) == [0, WARM_UP - 1]


def test_a_pause_between_save_and_resume_is_not_training_time(clock: Clock) -> None:
    schedule = RefreshSchedule(None, TimeBudget(0.05, CPU), 100)
    run(schedule, 500, 32, 1000, clock, train=0.1, refresh=0.5, score=0.02)
    clock.now += 10_000
    resumed = RefreshSchedule(None, TimeBudget(0.05, CPU), 100)
    resumed.load_state_dict(schedule.state_dict())
    assert resumed.state_dict()["counts"].tolist() == schedule.state_dict()["counts"].tolist()
    assert resumed.state_dict()["times"].tolist() == schedule.state_dict()["times"].tolist()
    resumed.time.begin()
    clock.now += 0.1
    resumed.end(32)
    assert resumed.time.elapsed == pytest.approx(schedule.time.elapsed + 0.1)


def test_steps_that_are_left_out_are_neither_scored_nor_checked() -> None:
    monitor, train = tiny(budget=0.5)
    train(1)
    monitor.schedule.time.stride = 4
    train(7)
    assert monitor.steps == 8
    assert monitor.scores()["n_observations"].sum() == 2 * 8  # steps 0 and 4, eight examples each


def test_a_budget_is_kept_in_real_time() -> None:
    x, y = torch.randn(600, 64), torch.arange(600) % 10
    model = nn.Sequential(
        nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 32), nn.Linear(32, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = InfluenceMonitor(model, optimizer, anchors=(x[500:], y[500:]), budget=0.05, max_anchors=100)
    start = time.perf_counter()
    while time.perf_counter() - start < 4 or monitor.schedule.refreshes < 3:
        index = torch.randperm(500)[:256]
        with monitor.step(index):
            nn.functional.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert time.perf_counter() - start < 40, "the budget never allowed a third refresh"
    schedule = monitor.schedule
    measured = time.perf_counter() - start
    assert schedule.time.elapsed == pytest.approx(measured, rel=0.2)
    assert schedule.time.share <= 0.08
    assert (monitor.scores()["n_observations"] > 0).mean() > 0.9
