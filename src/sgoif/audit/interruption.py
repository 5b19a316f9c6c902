"""Ctrl-C and SIGTERM: the run finishes its step, saves, and leaves."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Whether somebody asked to stop. Outside `deferred` a signal raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self.leaving = False
        """Whether everything is saved and the run is on its way out: a signal changes nothing any more."""
        self._deferred = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Listen to signals; where signals cannot be had (another thread than the first) nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[signal.Signals, Any] = {number: signal.signal(number, self._hear) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Signals are only noted; the one inside looks at `asked`, or it is done at the end. A second does not wait."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        if self.asked is not None:
            raise KeyboardInterrupt

    def _hear(self, number: int, frame: FrameType | None) -> None:
        repeated, self.asked = self.asked is not None, number
        if not self.leaving and (repeated or not self._deferred):
            raise KeyboardInterrupt
