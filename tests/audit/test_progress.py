"""What a person sees while an audit runs."""

from __future__ import annotations

import pytest

from sgoif.audit.progress import Bar, Lines, for_terminal, time_left


@pytest.mark.parametrize(
    ("seconds", "done", "remaining", "text"),
    [
        (10, 10, 30, "about 30 s left"),
        (60, 100, 1000, "about 10 min left"),
        (60, 1, 200, "about 3.3 h left"),
        (0.5, 10, 30, ""),
        (10, 0, 30, ""),
        (10, 30, 0, ""),
    ],
)
def test_time_left_is_told_as_a_person_would(seconds: float, done: int, remaining: int, text: str) -> None:
    assert time_left(seconds, done, remaining) == text


def test_lines_come_now_and_then_and_at_the_end(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    lines = Lines(every=10)
    lines.stage("training", 100, done=20)
    for step in range(21, 101):
        now += 0.5
        lines.advance(step, 100, "loss 0.1")
    streams = capfd.readouterr()
    assert streams.out == ""
    told = streams.err.splitlines()
    assert told[0] == "training: 20 of 100 done"
    assert told[1] == "training: 40 of 100, loss 0.1, about 30 s left"
    assert told[-1] == "training: 100 of 100, loss 0.1"
    assert len(told) == 5


def test_a_bar_shows_text_as_text(capfd: pytest.CaptureFixture[str]) -> None:
    bar = Bar()
    try:
        bar.stage("[red]reading[/]", 10)
        bar.advance(10, 10, "[bold]note")
        bar.say("[link=x]said[/link]")
        bar.stage("more", 0)
    finally:
        bar.close()
    streams = capfd.readouterr()
    assert streams.out == ""
    assert "[link=x]said[/link]" in streams.err


def test_without_a_terminal_there_are_lines() -> None:
    assert isinstance(for_terminal(), Lines)


def test_what_an_earlier_run_did_says_nothing_of_the_pace(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    lines = Lines(every=10)
    lines.stage("reading images", 1000)
    lines.advance(900, 1000)
    for done in range(901, 921):
        now += 1
        lines.advance(done, 1000)
    assert capfd.readouterr().err.splitlines()[-1] == "reading images: 920 of 1000, about 80 s left"
