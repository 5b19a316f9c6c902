"""Time and order of work on a GPU, which runs behind the host; other devices do everything at once and in turn."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any, NamedTuple
from weakref import ref

import torch

from sgoif.core.interrupts import register, unregister


class Clock:
    """How long the device works on what it is given from now on, without making the host wait at the start."""

    def __init__(self, device: torch.device) -> None:
        self._start = perf_counter()
        self._device = device
        self._reached = moment(device) if device.type == "cuda" else None

    def seconds(self) -> float:
        """Seconds until now, once the device has come this far."""
        if not self._reached:
            return perf_counter() - self._start
        now = moment(self._device)
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
        return moment(self._device) if self._device.type == "cuda" else None

    def stop(self, begun: torch.cuda.Event | None, seconds: float, beside: float, kind: bool) -> None:
        """The work took the host so many seconds; `beside` of it gave the device work between that of training."""
        behind = begun is not None and not begun.query()
        self._waiting.append((Span(begun, moment(self._device), beside) if begun and behind else seconds, kind))

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


def moment(device: torch.device) -> torch.cuda.Event:
    """Where the device will be once it has done what it was given so far."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


class aside:
    """Give a GPU work that need not wait for what it was given since `after`: the host may then look at results early.

    What the work writes to must not be used by what it overtakes. Later work on the device comes after it. The memory
    that its owner lets go of is used again by the next work aside. That may overtake what still reads it, if it is
    another's, who knows nothing of it: so where the owner changes, nothing is overtaken.
    """

    def __init__(self, device: torch.device, after: torch.cuda.Event | None, owner: object) -> None:
        self._device, self._after, self._owner = device, after, owner

    def __enter__(self) -> None:
        if self._after is None:
            return
        side = _side_stream(self._device)
        self._main, self._other = torch.cuda.current_stream(self._device), side.stream
        if side.owner() is self._owner:
            self._other.wait_event(self._after)
        else:
            self._other.wait_stream(self._main)
            side.owner = ref(self._owner)
        register(self.restore)
        torch.cuda.set_stream(self._other)

    def __exit__(self, *_: object) -> None:
        if self._after is None:
            return
        self.restore()
        unregister(self.restore)
        forget_workspaces()

    def restore(self) -> None:
        """Back to the stream of training, which goes on after the work."""
        torch.cuda.set_stream(self._main)
        self._main.wait_stream(self._other)


def forget_workspaces() -> None:
    """Give back the scratch memory that products have asked for on another stream, and that would be kept for ever.

    Each stream gets its own again when it next needs it.
    """
    forget: Any = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if forget is not None:
        forget()


@dataclass
class SideStream:
    """Where work goes that need not wait, and whose was the last."""

    stream: torch.cuda.Stream
    owner: Callable[[], object] = lambda: None


@cache
def _side_stream(device: torch.device) -> SideStream:
    """One stream a device for all such work: what it leaves is used again only after the main stream was waited for."""
    return SideStream(torch.cuda.Stream(device, priority=-1))
