"""What monitoring costs, and what a budget allows.

`budget` is a share of training time. Refreshes wait until they fit, and if scoring itself is too dear only every k-th
step is scored. With s the time of a scored step in the monitor, u that of another one and t that of a plain step, k is
the least with u + (s − u) / k ≤ budget t / 2; the other half is for refreshes. Where a GPU is behind the host, a step's
time is what the device needs, and else what the host does (`device.timing.Meter`). The first three steps, which load
kernels and fill caches, are no part of the account, and have two refreshes, of which the second tells what one costs. A
budget reacts to measured time, so runs with one are not repeatable bit for bit.
"""

import math
from time import perf_counter

import torch

from sgoif.device.timing import Meter

WARM_UP = 3
"""Steps that are no part of the account."""
LONGEST_STRIDE = 64
"""Of so many steps one is scored, however little the budget."""


class TimeBudget:
    """The time spent on training and on monitoring; without a `budget` it is measured alone."""

    COUNTS = ("stride", "_steps", "_scored")
    TIMES = ("spent", "elapsed", "last_refresh", "_scoring", "_passing", "_spent_before", "_elapsed_before")

    def __init__(self, budget: float | None, device: torch.device) -> None:
        self.budget = budget
        self.stride = 1
        """Of so many steps one is scored."""
        self.spent = 0.0
        """Seconds of monitoring so far, refreshes included."""
        self.elapsed = 0.0
        """Seconds from the first step to the end of the last one."""
        self.last_refresh = 0.0
        self._scoring = self._passing = self._spent_before = self._elapsed_before = 0.0
        self._steps = self._scored = 0
        self._resumed_at: float | None = None
        self._meter = Meter(device)

    def begin(self) -> None:
        """Training goes on from here."""
        if self._resumed_at is None:
            self._resumed_at = perf_counter() - self.elapsed

    @property
    def in_time(self) -> bool:
        """Whether one more refresh would keep to the budget."""
        if self.budget is None:
            return True
        return self.spent - self._spent_before + self.last_refresh <= self.budget * (self._now() - self._elapsed_before)

    @property
    def share(self) -> float:
        """Of the time since the warm-up, what was spent on monitoring."""
        return (self.spent - self._spent_before) / max(self.elapsed - self._elapsed_before, 1e-9)

    def allows_refresh(self, in_time: bool | None = None) -> bool:
        """Whether to refresh now; `in_time` is what the first of several ranks says about the budget."""
        if self._steps < WARM_UP:
            return self._steps == WARM_UP - 1
        return self.in_time if in_time is None else in_time

    def refreshed(self, seconds: float) -> None:
        """A refresh has taken so long, work on the device included."""
        self.last_refresh = seconds
        self.spent += seconds

    def mark(self) -> torch.cuda.Event | None:
        """Where the device is when the bookkeeping of a step begins; only a budget has to know."""
        return None if self.budget is None else self._meter.start()

    def account(
        self, seconds: float, *, scored: bool, mark: torch.cuda.Event | None = None, hooks: float = 0.0
    ) -> None:
        """Account for the hooks and the bookkeeping of one step, refresh excluded; `hooks`: of those with scores."""
        if mark is None:
            self._add(seconds, scored=scored)
            return
        self._meter.stop(mark, seconds, hooks, scored)
        for cost, kind in self._meter.known():
            self._add(cost, scored=kind)

    def _add(self, seconds: float, *, scored: bool) -> None:
        self.spent += seconds
        if scored:
            self._scoring += seconds
            self._scored += 1
        else:
            self._passing += seconds

    def end(self, steps: int = 1) -> None:
        """Close so many steps; under a budget, decide how many steps to leave out."""
        self.elapsed = self._now()
        self._steps += steps
        if self._steps == WARM_UP:
            self._spent_before, self._elapsed_before = self.spent, self.elapsed
            self._scoring, self._scored = 0.0, 0
            self._meter.forget()
        elif self.budget is not None and self._scored >= 10 and self._scored % 10 == 0:
            plain = (1 - self.share) * (self.elapsed - self._elapsed_before) / (self._steps - WARM_UP)
            self.stride = self._affordable(self.budget / 2 * plain)

    def _affordable(self, seconds: float) -> int:
        """k, with so many seconds a step for scoring."""
        dear = self._scoring / self._scored
        always = min(dear, self._passing / max(self._steps - WARM_UP - self._scored, 1))
        left = seconds - always
        return LONGEST_STRIDE if left <= 0 else min(max(1, math.ceil((dear - always) / left)), LONGEST_STRIDE)

    def _now(self) -> float:
        return perf_counter() - (self._resumed_at if self._resumed_at is not None else perf_counter())

    def counts_and_times(self) -> tuple[list[int], list[float]]:
        """What is saved of it."""
        return [getattr(self, name) for name in self.COUNTS], [getattr(self, name) for name in self.TIMES]

    def resume(self, counts: list[int], times: list[float]) -> None:
        """Go on from what was saved; the time in between is not training time."""
        for name, value in zip((*self.COUNTS, *self.TIMES), (*counts, *times), strict=True):
            setattr(self, name, value)
        self._resumed_at = None
