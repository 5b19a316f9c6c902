"""Time and order of work on a GPU, which runs behind the host; other devices do everything at once and in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from threading import Thread, current_thread
from time import perf_counter
from typing import NamedTuple

import torch


class Clock:
    """How long the device works on what it is given from now on, without making the host wait at the start."""

    def __init__(self, device: torch.device) -> None:
        self._start = perf_counter()
        self._device = device
        self._reached = _moment(device) if device.type == "cuda" else None

    def seconds(self) -> float:
        """Seconds until now, once the device has come this far."""
        if not self._reached:
            return perf_counter() - self._start
        now = _moment(self._device)
        now.synchronize()
        return float(self._reached.elapsed_time(now)) / 1000


class Meter:
    """What work between steps of training adds to their time, on a GPU without making the host wait.

    While the host is at work the device still has some to do, from before; the host's time is then hidden, and what is
    added is the device's own. Where the device has run dry it is the host's time that training waits for.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waiting: deque[tuple[float | Span, bool]] = deque()

    def start(self) -> torch.cuda.Event | None:
        """The moment at which work begins; None without a device that runs behind the host."""
        return _moment(self._device) if self._device.type == "cuda" else None

    def stop(self, begun: torch.cuda.Event | None, seconds: float, beside: float, kind: bool) -> None:
        """The work took the host so many seconds; `beside` of it gave the device work between that of training."""
        behind = begun is not None and not begun.query()
        self._waiting.append((Span(begun, _moment(self._device), beside) if begun and behind else seconds, kind))

    def known(self) -> Iterator[tuple[float, bool]]:
        """Seconds and kind of what was measured since, as far as the device has come."""
        while self._waiting:
            cost, kind = self._waiting[0]
            if isinstance(cost, Span):
                if not cost.end.query():
                    return
                cost = cost.start.elapsed_time(cost.end) / 1000 + cost.beside
            self._waiting.popleft()
            yield cost, kind

    def forget(self) -> None:
        """Leave out what was measured and not asked for."""
        self._waiting.clear()


class Span(NamedTuple):
    """Work of the device between two moments, and seconds that were spent elsewhere."""

    start: torch.cuda.Event
    end: torch.cuda.Event
    beside: float


def _moment(device: torch.device) -> torch.cuda.Event:
    """Where the device will be once it has done what it was given so far."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


class Beside:
    """Work that runs next to everything else from now on, until `wait`.

    For work on a GPU that makes the host wait: a decomposition, say. It runs in a thread and on a stream of its own,
    after what the device was given before and next to what it is given later. Nobody may write to what it needs, or
    use what it leaves, before `wait` has returned.
    """

    def __init__(self, device: torch.device, work: Callable[[], None]) -> None:
        self._device, self._work = device, work
        self._error: BaseException | None = None
        _other_stream(device).wait_stream(torch.cuda.current_stream(device))
        self._thread = Thread(target=self._run)
        self._thread.start()

    @property
    def inside(self) -> bool:
        """Whether it is the work itself that asks."""
        return current_thread() is self._thread

    def wait(self) -> None:
        """Return when the work is done, and raise what it raised; later work on the device comes after it."""
        self._thread.join()
        torch.cuda.current_stream(self._device).wait_stream(_other_stream(self._device))
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with torch.cuda.stream(_other_stream(self._device)):
                self._work()
        except BaseException as error:
            self._error = error


@cache
def _other_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream a device for all such work: its memory is used again only after the main stream was waited for."""
    return torch.cuda.Stream(device, priority=-1)
