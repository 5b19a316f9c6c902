"""How far an audit is, for the person who waits: a bar on a terminal, now and then a line elsewhere, or nothing."""

import sys
import time
from typing import Any

LINE_EVERY = 15.0
"""Seconds between two lines where there is no terminal."""


class Progress:
    """What an audit tells while it works: here nothing, which Python users get unless they ask for more."""

    def stage(self, name: str, total: int, done: int = 0) -> None:
        """A new piece of work begins, of which `done` is there already."""

    def advance(self, done: int, total: int, note: str = "") -> None:
        """So much of the piece of work is done."""

    def say(self, message: str) -> None:
        """Something worth a line of its own."""

    def close(self) -> None:
        """The audit is over."""


class Lines(Progress):
    """One line at the start and the end of a piece of work and every few seconds between, on standard error."""

    def __init__(self, every: float = LINE_EVERY) -> None:
        self.every = every
        self._name, self._pace, self._last = "", Pace(), 0.0

    def stage(self, name: str, total: int, done: int = 0) -> None:
        self._name, self._pace, self._last = name, Pace(done), time.monotonic()
        self.say(f"{name}: {done} of {total} done" if done else f"{name}: {total}" if total else name)

    def advance(self, done: int, total: int, note: str = "") -> None:
        left, now = self._pace.left(done, total), time.monotonic()
        if now - self._last < self.every and done < total:
            return
        self._last = now
        self.say(", ".join(part for part in (f"{self._name}: {done} of {total}", note, left) if part))

    def say(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)


class Bar(Progress):
    """A bar with the time left, drawn by rich. Text from data never counts as markup."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._console = Console(stderr=True)
        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%", markup=False),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=self._console,
            transient=True,
        )
        self._task: Any = None
        self._pace = Pace()
        self._bar.start()

    def stage(self, name: str, total: int, done: int = 0) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._pace = Pace(done)
        self._task = self._bar.add_task(name, total=total or None, completed=done, note="", left="")

    def advance(self, done: int, total: int, note: str = "") -> None:
        if self._task is not None:
            left = self._pace.left(done, total)
            self._bar.update(self._task, completed=done, total=total, note=note, left=left)

    def say(self, message: str) -> None:
        self._console.print(message, markup=False, highlight=False)

    def close(self) -> None:
        self._bar.stop()


class Pace:
    """How fast a piece of work goes. What is done when it is first told of was there before and says nothing of it."""

    def __init__(self, done: int = 0) -> None:
        self._first, self._since = done or None, time.monotonic()

    def left(self, done: int, total: int) -> str:
        """How long the rest will take, when so much is done."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._since = done, now
        return time_left(now - self._since, done - self._first, total - done)


def time_left(seconds: float, done: int, remaining: int) -> str:
    """How long it will take at the pace so far, as a person would say it."""
    if done <= 0 or remaining <= 0 or seconds < 1:
        return ""
    left = seconds / done * remaining
    if left < 90:
        return f"about {max(1, round(left))} s left"
    return f"about {round(left / 60)} min left" if left < 90 * 60 else f"about {left / 3600:.1f} h left"


def for_terminal() -> Progress:
    """A bar where standard error is a terminal, lines elsewhere."""
    return Bar() if sys.stderr.isatty() else Lines()
