"""Time and order of work on a GPU, which runs behind the host; other devices do everything at once and in turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import Thread, current_thread
from time import perf_counter

import torch


class Clock:
    """How long the device works on what it is given from now on, without making the host wait at the start."""

    def __init__(self, device: torch.device) -> None:
        self._start = perf_counter()
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._reached = self._stream.record_event(torch.cuda.Event(enable_timing=True)) if self._stream else None

    def seconds(self) -> float:
        """Seconds until now, once the device has come this far."""
        if not self._stream or not self._reached:
            return perf_counter() - self._start
        now = self._stream.record_event(torch.cuda.Event(enable_timing=True))
        now.synchronize()
        return float(self._reached.elapsed_time(now)) / 1000


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
