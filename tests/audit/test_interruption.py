"""Signals: at once, at the next step, or not at all where the run is on its way out."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

import pytest

from sgoif.audit.interruption import Interruption

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")


def ask() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def deferring(interruption: Interruption, times: int) -> list[int]:
    """Which of so many signals were heard without being stopped by them."""
    heard: list[int] = []
    with suppress(KeyboardInterrupt), interruption.deferred():
        for number in range(times):
            ask()
            heard.append(number)
    return heard


def test_outside_of_training_a_signal_counts_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    interruption = Interruption()
    with interruption.watching(), pytest.raises(KeyboardInterrupt):
        ask()
    assert interruption.asked == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_deferred_signal_counts_at_the_end_at_the_latest() -> None:
    interruption = Interruption()
    with interruption.watching(), pytest.raises(KeyboardInterrupt), interruption.deferred():
        ask()
    assert interruption.asked == signal.SIGTERM


def test_a_second_signal_does_not_wait() -> None:
    interruption = Interruption()
    with interruption.watching():
        assert deferring(interruption, 3) == [0]


def test_whoever_is_leaving_is_not_disturbed() -> None:
    interruption = Interruption()
    with interruption.watching():
        interruption.leaving = True
        ask()
        ask()
    assert interruption.asked == signal.SIGTERM
