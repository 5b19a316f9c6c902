"""When the bank is refreshed, which steps are scored, and what a budget keeps to."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import torch
from torch import nn

from sgoif import InfluenceMonitor
from sgoif.engine.refresh_schedule import EPOCHS, EXAMPLES_PER_ANCHOR, LONGEST_STRIDE, WARM_UP, RefreshSchedule, turn_of

CPU = torch.device("cpu")


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("sgoif.engine.refresh_schedule.perf_counter", clock)
    monkeypatch.setattr("sgoif.device.timing.perf_counter", clock)
    return clock


def run(
    schedule: RefreshSchedule, steps: int, batch: int, known: int, clock: Clock | None = None, **cost: float
) -> list[int]:
    """Steps at which a refresh fell, in a loop that does what the monitor does."""
    refreshed = []
    for step in range(steps):
        schedule.begin()
        if clock:
            clock.now += cost.get("train", 0.0)
        if schedule.scores_this_step(step):
            if schedule.due(batch, known):
                refreshed.append(step)
                schedule.refreshing()
                if clock:
                    clock.now += cost.get("refresh", 0.0)
                schedule.refreshed(cost.get("refresh", 0.0))
            if clock:
                clock.now += cost.get("score", 0.0)
            schedule.account(cost.get("score", 0.0), scored=True)
        else:
            if clock:
                clock.now += cost.get("passing", 0.0)
            schedule.account(cost.get("passing", 0.0), scored=False)
        schedule.end(batch)
    return refreshed


# --- default ----------------------------------------------------------------------------------------------------


def gaps(refreshed: list[int]) -> list[int]:
    return [b - a for a, b in itertools.pairwise(refreshed)]


def test_refreshes_are_frequent_at_first_and_then_spread_out() -> None:
    schedule = RefreshSchedule(None, None, 100, CPU)
    refreshed = run(schedule, 20_000, batch=10, known=10**9)
    apart = gaps(refreshed)
    assert refreshed[0] == 0
    assert 10 * apart[0] == 100, "the second comes after as many examples as there are anchors"
    assert all(b >= a for a, b in itertools.pairwise(apart)), "intervals never shrink"
    assert 10 * apart[-1] == EXAMPLES_PER_ANCHOR * 100
    growing = [(step, gap) for step, gap in zip(refreshed[1:], apart[1:], strict=False) if apart[0] < gap < apart[-1]]
    assert growing
    for step, gap in growing:
        assert 0.2 * step <= gap <= 1.1 * step, "in between they grow with what has been seen"


def test_a_small_data_set_is_refreshed_at_least_every_other_epoch() -> None:
    refreshed = run(RefreshSchedule(None, None, 1000, CPU), 1000, batch=10, known=400)
    assert gaps(refreshed)[-1] == EPOCHS * 400 // 10


def test_a_large_bank_is_refreshed_once_per_its_price() -> None:
    refreshed = run(RefreshSchedule(None, None, 10, CPU), 4000, batch=10, known=10**6)
    assert gaps(refreshed)[-1] == EXAMPLES_PER_ANCHOR


def test_poor_coverage_halves_the_interval() -> None:
    usual, urgent = RefreshSchedule(None, None, 50, CPU), RefreshSchedule(None, None, 50, CPU)
    urgent.urgent = True
    usual_at, urgent_at = run(usual, 1500, 50, 10**6), run(urgent, 1500, 50, 10**6)
    assert gaps(urgent_at)[-1] == pytest.approx(gaps(usual_at)[-1] / 2, abs=1)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_refresh_every_is_kept_to_the_step(every: int) -> None:
    assert run(RefreshSchedule(every, None, 1000, CPU), 21, batch=8, known=100) == list(range(0, 21, every))


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize(("every", "budget"), [(None, None), (7, None), (None, 0.05)])
def test_steps_until_the_next_refresh_are_counted(every: int | None, budget: float | None, urgent: bool) -> None:
    schedule, batch, known = RefreshSchedule(every, budget, 40, CPU), 8, 500
    told, happened = {}, []
    for step in range(400):
        told[step] = schedule.steps_until_refresh(batch, known, urgent)
        if schedule.due(batch, known):
            happened.append(step)
            schedule.refreshing()
        schedule.end(batch)
    for step in range(happened[0] + 1, happened[-1]):
        left = next(there for there in happened if there >= step) - step
        assert told[step] <= left
        if budget is None and (not urgent or every is not None):
            assert told[step] == left


def test_monitor_refreshes_at_the_steps_it_was_told(tiny) -> None:
    monitor, train = tiny(refresh_every=3)
    train(10)
    assert [entry["step"] for entry in monitor.history] == [0, 3, 6, 9]
    assert monitor.schedule.refreshes == 4
    assert all(entry["seconds"] > 0 for entry in monitor.history)


def test_low_coverage_makes_the_monitor_hurry(tiny) -> None:
    monitor, train = tiny(coverage_floor=1.1)
    train(1)
    assert monitor.schedule.urgent
    monitor, train = tiny(coverage_floor=-1.0)
    train(1)
    assert not monitor.schedule.urgent


# --- budget -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0.01, 0.05, 0.2])
def test_share_of_time_stays_within_the_budget(clock: Clock, budget: float) -> None:
    schedule = RefreshSchedule(None, budget, 100, CPU)
    refreshed = run(schedule, 4000, 32, 1000, clock, train=0.1, refresh=0.8, score=0.0001)
    assert 0.8 * budget <= schedule.share <= budget * (1 + 1e-9), "what may be spent is spent"
    assert len(refreshed) >= 3
    assert schedule.stride == 1


def test_dear_scoring_is_thinned_out_to_half_the_budget(clock: Clock) -> None:
    schedule = RefreshSchedule(None, 0.05, 100, CPU)
    run(schedule, 3000, 32, 1000, clock, train=0.1, refresh=0.1, score=0.02)
    assert schedule.stride == pytest.approx(0.2 / 0.025, abs=1)
    assert schedule.share <= 0.05 * 1.02
    assert schedule.refreshes > 10, "scoring leaves room for refreshes"


@pytest.mark.parametrize("cold", [1.0, 30.0])
def test_what_the_first_steps_take_is_not_paid_off(clock: Clock, cold: float) -> None:
    """On a GPU the first step and the first refresh load kernels, which takes as long as hundreds of steps."""
    schedule = RefreshSchedule(None, 0.05, 100, CPU)
    run(schedule, 1, 32, 1000, clock, train=0.01 + cold, refresh=cold, score=cold)
    refreshed = [run_on for run_on in range(1, 2000) if _one(schedule, run_on, clock)]
    assert refreshed[0] == WARM_UP - 1
    assert len(refreshed) > 10
    assert np.diff(refreshed).max() < 400, "and as steadily as without them"
    assert schedule.stride <= 3
    assert schedule.share <= 0.05 * 1.02


def _one(schedule: RefreshSchedule, step: int, clock: Clock) -> bool:
    """A warm step of 10 ms that takes half a millisecond to score, with refreshes of 20 ms; whether there was one."""
    before = schedule.refreshes
    schedule.begin()
    clock.now += 0.01
    scored = schedule.scores_this_step(step)
    if scored and schedule.due(32, 1000):
        schedule.refreshing()
        clock.now += 0.02
        schedule.refreshed(0.02)
    seconds = 0.0005 if scored else 0.00005
    clock.now += seconds
    schedule.account(seconds, scored=scored)
    schedule.end(32)
    return schedule.refreshes > before


def test_steps_without_scores_cost_something_too(clock: Clock) -> None:
    schedule = RefreshSchedule(None, 0.05, 100, CPU)
    run(schedule, 6000, 32, 1000, clock, train=0.1, refresh=0.1, score=0.02, passing=0.001)
    assert schedule.stride == pytest.approx((0.2 - 0.01) / (0.025 - 0.01), abs=1)
    assert schedule.share <= 0.05 * 1.02


def test_a_budget_that_watching_alone_exceeds_still_scores_now_and_then(clock: Clock) -> None:
    schedule = RefreshSchedule(None, 0.01, 100, CPU)
    run(schedule, 6000, 32, 1000, clock, train=0.1, score=0.02, passing=0.001)
    assert schedule.stride == LONGEST_STRIDE


def test_time_without_training_can_be_left_out(clock: Clock) -> None:
    schedule = RefreshSchedule(None, 0.05, 100, CPU)
    schedule.leave_out(5.0)  # before it began there is nothing to leave out
    run(schedule, 10, 32, 1000, clock, train=0.1)
    clock.now += 7.0
    schedule.leave_out(7.0)
    run(schedule, 10, 32, 1000, clock, train=0.1)
    assert schedule.elapsed == pytest.approx(2.0)


def test_a_budget_that_scoring_fits_keeps_every_step(clock: Clock) -> None:
    schedule = RefreshSchedule(None, 0.5, 100, CPU)
    run(schedule, 200, 32, 1000, clock, train=0.1, refresh=0.1, score=0.02)
    assert schedule.stride == 1
    assert schedule._scored == 200 - WARM_UP


def test_a_refresh_too_dear_for_the_run_happens_in_the_warm_up_alone(clock: Clock) -> None:
    schedule = RefreshSchedule(None, 0.01, 100, CPU)
    assert run(schedule, 500, 32, 1000, clock, train=0.1, refresh=1.0) == [0, WARM_UP - 1]


def test_a_pause_between_save_and_resume_is_not_training_time(clock: Clock) -> None:
    schedule = RefreshSchedule(None, 0.05, 100, CPU)
    run(schedule, 500, 32, 1000, clock, train=0.1, refresh=0.5, score=0.02)
    clock.now += 10_000
    resumed = RefreshSchedule(None, 0.05, 100, CPU)
    resumed.load_state_dict(schedule.state_dict())
    for name in ("spent", "elapsed", "last_refresh", "stride", "refreshes", "seen", "_scored", "_scoring", "_passing"):
        assert getattr(resumed, name) == getattr(schedule, name), name
    resumed.begin()
    clock.now += 0.1
    resumed.end(32)
    assert resumed.elapsed == pytest.approx(schedule.elapsed + 0.1)


def test_steps_that_are_left_out_are_neither_scored_nor_checked(tiny) -> None:
    monitor, train = tiny(budget=0.5)
    train(1)
    monitor.schedule.stride = 4
    train(7)
    assert monitor.steps == 8
    assert monitor.scores()["n_observations"].sum() == 2 * 8  # steps 0 and 4, eight examples each


@pytest.fixture
def tiny():
    """A monitor over a small problem and a function that trains it for some steps of eight examples."""

    def make(**options):
        x, y = torch.randn(100, 6), torch.arange(100) % 3
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = InfluenceMonitor(model, optimizer, anchors=(x[80:], y[80:]), **options)

        def train(steps: int) -> None:
            for _ in range(steps):
                index = torch.randperm(80)[:8]
                with monitor.step(index):
                    nn.functional.cross_entropy(model(x[index]), y[index]).backward()
                optimizer.step()
                optimizer.zero_grad()

        return monitor, train

    return make


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
    assert schedule.elapsed == pytest.approx(measured, rel=0.2)
    assert schedule.share <= 0.08
    assert (monitor.scores()["n_observations"] > 0).mean() > 0.9


def test_turns_are_even_repeatable_and_change_with_the_seed() -> None:
    turns = [turn_of(step, 8, seed=3) for step in range(4000)]
    assert turns == [turn_of(step, 8, seed=3) for step in range(4000)]
    assert turns != [turn_of(step, 8, seed=4) for step in range(4000)]
    counts = [turns.count(turn) for turn in range(8)]
    assert min(counts) > 400, "500 expected, deviation 21"
    assert max(counts) < 600


@pytest.mark.parametrize("batch", [7, 64, 500])
def test_the_directions_are_never_older_than_a_fifth_of_the_run_until_the_longest_interval(batch: int) -> None:
    anchors, known = 200, 10_000
    schedule, seen, last = RefreshSchedule(None, None, anchors, CPU), 0, 0
    while seen < 200_000:
        if schedule.due(batch, known):
            schedule.refreshing()
            last = seen + batch
        seen += batch
        schedule.end(batch)
        oldest = min(max(seen / 5, anchors), schedule.longest(known))
        assert seen - last <= oldest + batch
