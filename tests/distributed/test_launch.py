"""Several processes started here end with the first of them, whatever the others do."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable

import pytest
from warm_processes import start_warm_processes

from sgoif.distributed import launch
from sgoif.errors import RankError


def answers() -> int:
    return 7


def leaves() -> None:
    pass


def lingers() -> int:
    time.sleep(600)
    return 0


def fails() -> None:
    raise RuntimeError("out of luck")


def asks_to_stop() -> int:
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    os.kill(parent.pid, signal.SIGTERM)
    return lingers()


def does_not_listen() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return asks_to_stop()


def test_the_answer_is_that_of_the_first() -> None:
    assert launch.launch(2, answers, leaves) == 7


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that need not import torch again, and little time to end."""
    monkeypatch.setattr(launch, "start_processes", start_warm_processes)
    monkeypatch.setattr(launch, "GRACE", 1.0)


@pytest.mark.usefixtures("warm")
def test_one_that_lingers_is_ended_after_a_while() -> None:
    began = time.monotonic()
    assert launch.launch(2, answers, lingers) == 7
    assert time.monotonic() - began < 300


@pytest.mark.usefixtures("warm")
def test_one_that_fails_is_told() -> None:
    with pytest.raises(RankError, match=r"ended unexpectedly.*out of luck"):
        launch.launch(2, lingers, fails)


@pytest.mark.usefixtures("warm")
def test_one_that_leaves_without_a_word_ends_the_others() -> None:
    with pytest.raises(RankError, match="without a word"):
        launch.launch(2, lingers, leaves)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("first", [asks_to_stop, does_not_listen])
def test_a_request_to_stop_is_not_taken_for_a_failure_and_does_not_wait_for_ever(
    first: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "STOPPING", 1.0)
    began = time.monotonic()
    with pytest.raises(launch.Stopped) as stop:
        launch.launch(2, first, lingers)
    assert stop.value.number == signal.SIGTERM
    assert time.monotonic() - began < 300
