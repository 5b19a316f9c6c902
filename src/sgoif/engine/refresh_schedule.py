"""When the bank is refreshed, which steps are scored, and whose turn it is in a step.

Without further word a refresh is due at the first step, then whenever the number of examples seen has grown by a
quarter, though not before one example per anchor, until the interval reaches two epochs or 100 examples per anchor,
whichever is less. So at the end of a run, however short, the directions are no older than its last fifth. With the head
watched an anchor costs about a third of a training example: a third of a percent of a long run, and a little more for
solving. Where layers below the head are watched an anchor is dearer, and both limits are multiplied by `price`.
`refresh_every` sets the interval in steps. `budget` sets a share of training time instead: refreshes wait until they
fit, and if scoring itself is too dear only every k-th step is scored. With s the time of a scored step in the monitor,
u that of another one and t that of a plain step, k is the least with u + (s − u) / k ≤ budget t / 2; the other half is
for refreshes. Where a GPU is behind the host, a step's time is what the device needs, and else what the host does
(`device.timing.Meter`). The first three steps, which load kernels and fill caches, take a hundred times as long as
later ones on a GPU and would be paid off for thousands of steps: they are no part of the account, and have two
refreshes, of which the second tells what one costs. A budget reacts to measured time, so runs with one are not
repeatable bit for bit.
"""

from __future__ import annotations

import math
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np
import torch

from sgoif.device.timing import Meter

EXAMPLES_PER_ANCHOR = 100
EPOCHS = 2
COUNTS = ("examples", "steps", "seen", "refreshes", "urgent", "stride", "_total_steps", "_scored")
TIMES = ("spent", "elapsed", "last_refresh", "_scoring", "_passing", "_spent_before", "_elapsed_before")
GROWTH = 4
"""The examples seen so far over those between two refreshes, until the longest interval is reached."""
WARM_UP = 3
"""Steps that are no part of a budget's account."""
LONGEST_STRIDE = 64
"""Of so many steps one is scored, however little the budget."""
DRAWN_AT_ONCE = 1024
"""Turns that are drawn together: making a generator takes longer than all else that a turn needs."""


def turn_of(step: int, turns: int, seed: int) -> int:
    """Which of so many turns a step takes: random, and the same whenever that step is asked about."""
    block, place = divmod(step, DRAWN_AT_ONCE)
    return _drawn(block, turns, seed)[place]


@lru_cache(maxsize=16)
def _drawn(block: int, turns: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng((seed, block)).integers(turns, size=DRAWN_AT_ONCE).tolist())


class RefreshSchedule:
    """Counters since the last refresh, and the time spent on training and on monitoring."""

    def __init__(
        self, refresh_every: int | None, budget: float | None, anchors: int, device: torch.device, price: int = 1
    ) -> None:
        self.refresh_every = refresh_every
        self.budget = budget
        self.anchors = anchors
        self.price = price
        self.device = device
        self.examples = 0
        self.steps = 0
        self.seen = 0
        self.refreshes = 0
        self.urgent = False
        self.overdue = False
        """Whether the last refresh came to nothing."""
        self.stride = 1
        self.spent = 0.0
        """Seconds of monitoring so far, refreshes included."""
        self.elapsed = 0.0
        """Seconds from the first step to the end of the last one."""
        self.last_refresh = 0.0
        self._scoring = 0.0
        self._passing = 0.0
        self._spent_before = 0.0
        self._elapsed_before = 0.0
        self._scored = 0
        self._total_steps = 0
        self._resumed_at: float | None = None
        self._meter = Meter(device)

    def begin(self) -> None:
        if self._resumed_at is None:
            self._resumed_at = perf_counter() - self.elapsed

    def scores_this_step(self, step: int) -> bool:
        return step % self.stride == 0

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

    def due(self, batch: int, known: int, in_time: bool | None = None) -> bool:
        """Whether to refresh now, with `batch` more examples and `known` examples in the ledger.

        `in_time` is what the first of several ranks says about the budget.
        """
        if self.refreshes == 0 or self.overdue:
            return True
        if self.refresh_every is None and self.budget is not None:
            if self._total_steps < WARM_UP:
                return self._total_steps == WARM_UP - 1
            return self.in_time if in_time is None else in_time
        if self.refresh_every is not None:
            return self.steps + 1 >= self.refresh_every
        return self.examples + batch >= self._limit(known)

    def steps_until_refresh(self, batch: int, known: int, urgent: bool) -> int:
        """Steps with so many examples after which certainly no refresh is due; a budget says nothing of the next.

        `urgent`: what is known so far may turn out to be too little.
        """
        if not self.refreshes or self.overdue or (self.budget is not None and self.refresh_every is None):
            return 0
        if self.refresh_every is not None:
            return max(0, self.refresh_every - self.steps - 1)
        limit = self._limit(known) / (2 if urgent and not self.urgent else 1)
        return max(0, math.ceil((limit - self.examples) / max(batch, 1)) - 1)

    def _limit(self, known: int) -> float:
        """Examples from the last refresh to the next."""
        before = self.seen - self.examples  # seen up to the last refresh; `seen` itself moves along with `examples`
        limit = min(max(before / GROWTH, self.price * self.anchors), self.longest(known))
        return limit / 2 if self.urgent else limit

    def longest(self, known: int) -> float:
        """Examples between two refreshes in the long run, with `known` examples in the ledger."""
        return self.price * min(EPOCHS * known, EXAMPLES_PER_ANCHOR * self.anchors)

    def refreshing(self) -> None:
        """A refresh begins; the step that is ending belongs to the old interval."""
        self.overdue = False
        self.refreshes += 1
        self.steps = -1

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

    def leave_out(self, seconds: float) -> None:
        """Time that has passed without training counts for nothing."""
        if self._resumed_at is not None:
            self._resumed_at += seconds

    def end(self, examples: int, steps: int = 1) -> None:
        """Close a step, or several in which nothing was due; under a budget, decide how many steps to leave out."""
        self.steps += steps
        self.examples = self.examples + examples if self.steps else 0
        self.seen += examples
        self.elapsed = self._now()
        self._total_steps += steps
        if self._total_steps == WARM_UP:
            self._spent_before, self._elapsed_before = self.spent, self.elapsed
            self._scoring, self._scored = 0.0, 0
            self._meter.forget()
        elif self.budget is not None and self._scored >= 10 and self._scored % 10 == 0:
            plain = (1 - self.share) * (self.elapsed - self._elapsed_before) / (self._total_steps - WARM_UP)
            self.stride = self._affordable(self.budget / 2 * plain)

    def _affordable(self, seconds: float) -> int:
        """k, with so many seconds a step for scoring."""
        dear = self._scoring / self._scored
        always = min(dear, self._passing / max(self._total_steps - WARM_UP - self._scored, 1))
        left = seconds - always
        return LONGEST_STRIDE if left <= 0 else min(max(1, math.ceil((dear - always) / left)), LONGEST_STRIDE)

    def _now(self) -> float:
        return perf_counter() - (self._resumed_at if self._resumed_at is not None else perf_counter())

    def state_dict(self) -> dict[str, Any]:
        return {
            "counts": torch.tensor([int(getattr(self, name)) for name in COUNTS], dtype=torch.int64),
            "times": torch.tensor([getattr(self, name) for name in TIMES], dtype=torch.float64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        counts, times = state["counts"].tolist(), state["times"].tolist()
        for name, value in zip((*COUNTS, *TIMES), (*counts, *times), strict=True):
            setattr(self, name, value)
        self.urgent = bool(self.urgent)
        self._resumed_at = None
