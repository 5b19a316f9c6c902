"""When the bank is refreshed: the schedule of docs/method.md, so that directions are never older than a fifth of a run.

At least one example per anchor is seen in between. Where layers below the head are watched an anchor is dearer, and
this limit and the longest interval are multiplied by `price`. A budget is kept by `engine.time_budget`.
"""

import math
from typing import Any

import torch

from sgoif.engine.time_budget import TimeBudget

EXAMPLES_PER_ANCHOR = 100
EPOCHS = 2
COUNTS = ("examples", "steps", "seen", "refreshes", "urgent")
GROWTH = 4
"""The examples seen so far over those between two refreshes, until the longest interval is reached."""


class RefreshSchedule:
    """Counters since the last refresh, and when the next is due; `time` is what monitoring costs and may cost."""

    def __init__(self, refresh_every: int | None, time: TimeBudget, anchors: int, price: int = 1) -> None:
        self.refresh_every, self.time, self.anchors, self.price = refresh_every, time, anchors, price
        self.by_time = time.budget is not None and refresh_every is None
        """Whether the budget alone says when."""
        self.examples = 0
        self.steps = 0
        self.seen = 0
        self.refreshes = 0
        self.urgent = False
        self.overdue = False
        """Whether the last refresh came to nothing."""

    def due(self, batch: int, known: int, in_time: bool | None = None) -> bool:
        """Whether to refresh now, with `batch` more examples and `known` examples in the ledger.

        `in_time` is what the first of several ranks says about the budget.
        """
        if self.refreshes == 0 or self.overdue:
            return True
        if self.by_time:
            return self.time.allows_refresh(in_time)
        if self.refresh_every is not None:
            return self.steps + 1 >= self.refresh_every
        return self.examples + batch >= self._limit(known)

    def steps_until_refresh(self, batch: int, known: int, urgent: bool) -> int:
        """Steps with so many examples after which certainly no refresh is due; a budget says nothing of the next.

        `urgent`: what is known so far may turn out to be too little.
        """
        if not self.refreshes or self.overdue or self.by_time:
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

    def end(self, examples: int, steps: int = 1) -> None:
        """Close a step, or several in which nothing was due."""
        self.steps += steps
        self.examples = self.examples + examples if self.steps else 0
        self.seen += examples
        self.time.end(steps)

    def state_dict(self) -> dict[str, Any]:
        counts, times = self.time.counts_and_times()
        own = [int(getattr(self, name)) for name in COUNTS]
        return {
            "counts": torch.tensor([*own, *counts], dtype=torch.int64),
            "times": torch.tensor(times, dtype=torch.float64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        counts = state["counts"].tolist()
        for name, value in zip(COUNTS, counts, strict=False):
            setattr(self, name, value)
        self.urgent = bool(self.urgent)
        self.time.resume(counts[len(COUNTS) :], state["times"].tolist())
