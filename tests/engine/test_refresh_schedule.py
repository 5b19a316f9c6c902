"""When the bank is refreshed."""

from __future__ import annotations

import itertools

import pytest
import torch
from refresh_loop import run, tiny

from sgoif.engine.refresh_schedule import EPOCHS, EXAMPLES_PER_ANCHOR, RefreshSchedule
from sgoif.engine.time_budget import TimeBudget

CPU = torch.device("cpu")


def gaps(refreshed: list[int]) -> list[int]:
    return [b - a for a, b in itertools.pairwise(refreshed)]


def test_refreshes_are_frequent_at_first_and_then_spread_out() -> None:
    schedule = RefreshSchedule(None, TimeBudget(None, CPU), 100)
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
    refreshed = run(RefreshSchedule(None, TimeBudget(None, CPU), 1000), 1000, batch=10, known=400)
    assert gaps(refreshed)[-1] == EPOCHS * 400 // 10


def test_a_large_bank_is_refreshed_once_per_its_price() -> None:
    refreshed = run(RefreshSchedule(None, TimeBudget(None, CPU), 10), 4000, batch=10, known=10**6)
    assert gaps(refreshed)[-1] == EXAMPLES_PER_ANCHOR


def test_poor_coverage_halves_the_interval() -> None:
    usual, urgent = RefreshSchedule(None, TimeBudget(None, CPU), 50), RefreshSchedule(None, TimeBudget(None, CPU), 50)
    urgent.urgent = True
    usual_at, urgent_at = run(usual, 1500, 50, 10**6), run(urgent, 1500, 50, 10**6)
    assert gaps(urgent_at)[-1] == pytest.approx(gaps(usual_at)[-1] / 2, abs=1)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_refresh_every_is_kept_to_the_step(every: int) -> None:
    assert run(RefreshSchedule(every, TimeBudget(None, CPU), 1000), 21, batch=8, known=100) == list(range(0, 21, every))


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize(("every", "budget"), [(None, None), (7, None), (None, 0.05)])
def test_steps_until_the_next_refresh_are_counted(every: int | None, budget: float | None, urgent: bool) -> None:
    schedule, batch, known = RefreshSchedule(every, TimeBudget(budget, CPU), 40), 8, 500
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


def test_monitor_refreshes_at_the_steps_it_was_told() -> None:
    monitor, train = tiny(refresh_every=3)
    train(10)
    assert [entry["step"] for entry in monitor.history] == [0, 3, 6, 9]
    assert monitor.schedule.refreshes == 4
    assert all(entry["seconds"] > 0 for entry in monitor.history)


def test_low_coverage_makes_the_monitor_hurry() -> None:
    monitor, train = tiny(coverage_floor=1.0)
    train(1)
    assert monitor.schedule.urgent
    monitor, train = tiny(coverage_floor=0.0)
    train(1)
    assert not monitor.schedule.urgent


@pytest.mark.parametrize("batch", [7, 64, 500])
def test_the_directions_are_never_older_than_a_fifth_of_the_run_until_the_longest_interval(batch: int) -> None:
    anchors, known = 200, 10_000
    schedule, seen, last = RefreshSchedule(None, TimeBudget(None, CPU), anchors), 0, 0
    while seen < 200_000:
        if schedule.due(batch, known):
            schedule.refreshing()
            last = seen + batch
        seen += batch
        schedule.end(batch)
        oldest = min(max(seen / 5, anchors), schedule.longest(known))
        assert seen - last <= oldest + batch
