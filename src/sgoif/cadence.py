"""When the bank is refreshed, which steps are scored, and whose turn it is in a step.

Without further word a refresh is due at the first step, then whenever the number of examples seen has doubled, until
the interval reaches two epochs or 100 examples per anchor, whichever is less. With the head watched an anchor costs
about a third of a training example, so that is a third of a percent of training, and a little more for solving. Where
layers below the head are watched an anchor is dearer, and both limits are multiplied by `price`.
`refresh_every` sets the interval in steps. `budget` sets a share of training time instead: refreshes wait until they
fit, and if scoring itself is too dear only every k-th step is scored. A budget reacts to measured time, so runs with
one are not repeatable bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np
import torch

from sgoif.streams import Clock

EXAMPLES_PER_ANCHOR = 100
EPOCHS = 2
COUNTS = ("examples", "steps", "seen", "refreshes", "urgent", "stride", "_total_steps", "_scored")
TIMES = ("spent", "elapsed", "last_refresh", "_scoring")
DRAWN_AT_ONCE = 1024
"""Turns that are drawn together: making a generator takes longer than all else that a turn needs."""


def turn_of(step: int, turns: int, seed: int) -> int:
    """Which of so many turns a step takes: random, and the same whenever that step is asked about."""
    block, place = divmod(step, DRAWN_AT_ONCE)
    return _drawn(block, turns, seed)[place]


@lru_cache(maxsize=16)
def _drawn(block: int, turns: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng((seed, block)).integers(turns, size=DRAWN_AT_ONCE).tolist())


class Cadence:
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
        self.stride = 1
        self.spent = 0.0
        """Seconds of monitoring so far, refreshes included."""
        self.elapsed = 0.0
        """Seconds from the first step to the end of the last one."""
        self.last_refresh = 0.0
        self._scoring = 0.0
        self._scored = 0
        self._total_steps = 0
        self._resumed_at: float | None = None

    def begin(self) -> None:
        if self._resumed_at is None:
            self._resumed_at = perf_counter() - self.elapsed

    def scores_this_step(self, step: int) -> bool:
        return step % self.stride == 0

    @property
    def in_time(self) -> bool:
        """Whether one more refresh would keep to the budget."""
        return self.budget is None or self.spent + self.last_refresh <= self.budget * self._now()

    def due(self, batch: int, known: int, in_time: bool | None = None) -> bool:
        """Whether to refresh now, with `batch` more examples and `known` examples in the ledger.

        `in_time` is what the first of several ranks says about the budget.
        """
        if self.refreshes == 0:
            return True
        if self.refresh_every is None and self.budget is not None:
            return self.in_time if in_time is None else in_time
        return self.foreseen(batch, known, 1)

    def quiet(self, batch: int, known: int, steps: int) -> bool:
        """Whether it is certain that no refresh is due within so many more steps, this one included."""
        timed = self.budget is not None and self.refresh_every is None
        return self.refreshes > 0 and not timed and not self.foreseen(batch, known, steps)

    def foreseen(self, batch: int, known: int, steps: int) -> bool:
        """Whether a refresh will be due after so many more steps, this one included; a budget cannot be foreseen."""
        if self.refresh_every is not None:
            return self.steps + steps >= self.refresh_every
        if self.budget is not None:
            return False
        before = self.seen - self.examples  # seen up to the last refresh; `seen` itself moves along with `examples`
        limit = min(max(before, self.price * self.anchors), self.longest(known))
        return self.examples + steps * batch >= (limit / 2 if self.urgent else limit)

    def longest(self, known: int) -> float:
        """Examples between two refreshes in the long run, with `known` examples in the ledger."""
        return self.price * min(EPOCHS * known, EXAMPLES_PER_ANCHOR * self.anchors)

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        """Time a refresh, work on the device included."""
        clock = Clock(self.device)
        yield
        self.last_refresh = clock.seconds()
        self.spent += self.last_refresh
        self.refreshes += 1
        self.steps = -1  # the step that is ending belongs to the old interval

    def scored(self, seconds: float) -> None:
        """Account for the hooks and the bookkeeping of one step, refresh excluded."""
        self.spent += seconds
        self._scoring += seconds
        self._scored += 1

    def end(self, batch: int) -> None:
        """Close a step; under a budget, decide how many steps to leave out."""
        self.steps += 1
        self.examples = self.examples + batch if self.steps else 0
        self.seen += batch
        self.elapsed = self._now()
        self._total_steps += 1
        if self.budget is not None and self._scored >= 10 and self._scored % 10 == 0:
            plain = max((self.elapsed - self.spent) / self._total_steps, 1e-9)
            dear = self._scoring / self._scored / plain
            self.stride = max(1, math.ceil(dear / (self.budget / 2)))

    def _now(self) -> float:
        return perf_counter() - (self._resumed_at if self._resumed_at is not None else perf_counter())

    def state_dict(self) -> dict[str, Any]:
        return {
            "counts": torch.tensor([int(getattr(self, name)) for name in COUNTS], dtype=torch.int64),
            "times": torch.tensor([getattr(self, name) for name in TIMES], dtype=torch.float64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for names, key in ((COUNTS, "counts"), (TIMES, "times")):
            for name, value in zip(names, state[key].tolist(), strict=True):
                setattr(self, name, value)
        self.urgent = bool(self.urgent)
        self._resumed_at = None
