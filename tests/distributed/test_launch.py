"""Several processes started here end with the first of them, whatever the others do."""

from __future__ import annotations

import time

import pytest

from sgoif import processes
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


def test_the_answer_is_that_of_the_first() -> None:
    assert processes.launch(2, answers, leaves) == 7


def test_one_that_lingers_is_ended_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE", 1.0)
    began = time.monotonic()
    assert processes.launch(2, answers, lingers) == 7
    assert time.monotonic() - began < 300


def test_one_that_fails_is_told() -> None:
    with pytest.raises(RankError, match=r"ended unexpectedly.*out of luck"):
        processes.launch(2, lingers, fails)
