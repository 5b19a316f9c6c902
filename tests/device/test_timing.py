"""The time that work takes on a device that runs behind the host."""

from __future__ import annotations

import pytest
import torch

from sgoif.device import timing
from sgoif.device.timing import Clock, Meter, SideStream, aside
from sgoif.engine.refresh_schedule import RefreshSchedule
from sgoif.engine.time_budget import TimeBudget

CPU = torch.device("cpu")
GPU = torch.device("cuda")


def test_clock_counts_from_where_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5.0]
    monkeypatch.setattr("sgoif.device.timing.perf_counter", lambda: now[0])
    clock = Clock(CPU)
    now[0] = 7.5
    assert clock.seconds() == 2.5


class Card:
    """A device that works off what it is given; `reached` is how far it has come, in milliseconds of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given, self.reached = 0.0, 0.0
        monkeypatch.setattr(timing, "moment", lambda device: Moment(self, self.given))


class Moment:
    """An event that was recorded behind the work that the card had been given."""

    def __init__(self, card: Card, at: float) -> None:
        self.card, self.at = card, at

    def query(self) -> bool:
        return self.card.reached >= self.at

    def elapsed_time(self, later: Moment) -> float:
        return later.at - self.at


def test_without_a_device_of_its_own_work_costs_what_it_takes() -> None:
    meter = Meter(CPU)
    meter.stop(meter.start(), 0.25, 0.0, True)
    assert list(meter.known()) == [(0.25, True)]
    assert list(meter.known()) == []


def test_time_of_the_host_is_hidden_while_the_device_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    card, meter = Card(monkeypatch), Meter(GPU)
    card.given = 10.0
    begun = meter.start()
    card.given, card.reached = 12.0, 4.0  # two milliseconds more to do, six of the others left
    meter.stop(begun, 0.5, 0.125, True)
    assert list(meter.known()) == [], "what the device takes is not known before it is done"
    card.reached = 11.0
    assert list(meter.known()) == []
    card.reached = 12.0
    assert list(meter.known()) == [(0.002 + 0.125, True)]


def test_training_waits_for_the_host_where_the_device_ran_dry(monkeypatch: pytest.MonkeyPatch) -> None:
    card, meter = Card(monkeypatch), Meter(GPU)
    begun = meter.start()
    card.given = 2.0
    meter.stop(begun, 0.5, 0.125, False)
    assert list(meter.known()) == [(0.5, False)]


def test_costs_are_known_in_turn_and_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    card, meter = Card(monkeypatch), Meter(GPU)
    card.given = 5.0
    meter.stop(meter.start(), 1.0, 0.0, True)
    card.reached = 4.0
    meter.stop(None, 2.0, 0.0, False)
    assert list(meter.known()) == [], "the second waits for the first"
    card.reached = 5.0
    assert list(meter.known()) == [(0.0, True), (2.0, False)]
    meter.stop(None, 3.0, 0.0, True)
    meter.forget()
    assert list(meter.known()) == []


@pytest.mark.parametrize(("behind", "strides"), [(True, range(1, 2)), (False, range(5, 65))])
def test_a_budget_scores_every_step_where_the_device_is_slower(
    monkeypatch: pytest.MonkeyPatch, behind: bool, strides: range
) -> None:
    """The host takes a tenth of a step for scoring, the device a thousandth."""
    now, card = [0.0], Card(monkeypatch)
    monkeypatch.setattr("sgoif.engine.time_budget.perf_counter", lambda: now[0])
    schedule = RefreshSchedule(None, TimeBudget(0.05, GPU), 100)
    for step in range(200):
        schedule.time.begin()
        scored = step % schedule.time.stride == 0
        card.given += 10.0
        mark = schedule.time.mark()
        card.given += 0.01 if scored else 0.0
        if not behind:
            card.reached = card.given
        now[0] += 0.010
        schedule.time.account(0.001 if scored else 0.0, scored=scored, mark=mark)
        schedule.end(10)
        card.reached = card.given
    assert schedule.time.stride in strides


def test_no_event_is_recorded_without_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "moment", lambda device: pytest.fail("a budget alone has to know"))
    schedule = RefreshSchedule(None, TimeBudget(None, GPU), 100)
    schedule.time.begin()
    schedule.time.account(0.5, scored=True, mark=schedule.time.mark())
    assert schedule.time.spent == 0.5


class Stream:
    """A stream of work that only says what it waited for."""

    def __init__(self) -> None:
        self.waited: list[object] = []

    def wait_event(self, event: object) -> None:
        self.waited.append(event)

    wait_stream = wait_event


class Owner:
    """Somebody who has work that need not wait."""


def test_work_overtakes_only_where_the_memory_it_uses_again_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    main, other, after = Stream(), Stream(), Moment(Card(monkeypatch), 1.0)
    side, used = SideStream(other), []  # type: ignore[arg-type]
    monkeypatch.setattr(timing, "_side_stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "set_stream", used.append)
    first, second = Owner(), Owner()
    for owner in (first, first, second, first):
        with aside(GPU, after, owner):  # type: ignore[arg-type]
            assert used[-1] is other
        assert used[-1] is main
    assert other.waited == [main, after, main, main]
    assert main.waited == [other] * 4
    del first
    with aside(GPU, after, Owner()):  # type: ignore[arg-type]
        assert other.waited[-1] is main, "an owner that is gone is nobody"
