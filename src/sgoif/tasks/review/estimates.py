"""What the looks of a person say about a whole list of examples that may be wrong.

Decisions count in three ways:

- *Looks*: the longest beginning of the plan of which every example is decided. They are the random sample.
- *The reviewed beginning* of the list: its longest beginning of which at least 95% are decided. It is known, no longer
  estimated, and the few without a decision may be anything. What was drawn there leaves the sample; the other looks
  are a random sample of the rest of the list.
- *All others* say for certain how many of their stratum are wrong, or right, at least. Somebody chose them, for
  reasons nobody knows, so nothing is concluded from them about examples that were not looked at. Were they taken out
  of their stratum instead, looks that this person would have chosen as well would weigh too much in what remains.

Where the reviewed beginning ends within a stratum, the rest of it is a stratum by itself if at least three looks fell
there; otherwise the stratum stays whole, with what is known of it as limits. All of this depends on where somebody
looked, never on what was seen, so that the intervals (`inversion`) hold for every ranking.

A block of N examples with n looks, x of them wrong, is estimated as N (x + p') / (n + 1), where p' is its mean
probability after recalibration: one look's worth of the prior, which has an answer where there is no look and is about
as accurate as none elsewhere (root mean square errors 0.3 points smaller to 0.1 larger in the rankings tried).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sgoif.core.types import Array
from sgoif.errors import SettingError
from sgoif.tasks.review.inversion import MISS, interval_of_errors
from sgoif.tasks.review.plan import ReviewPlan
from sgoif.tasks.review.recalibration import length_of_best_f1, prior_by_rank, recalibrated

REVIEWED = 0.95
FEWEST = 3
NEXT = 100
WORTHWHILE = 0.05
"""Share of errors down to which looking on is worthwhile, unless somebody says otherwise."""
UNKNOWN, RIGHT, WRONG = -1, 0, 1


class Interval(NamedTuple):
    """An estimate with its 95% interval."""

    estimate: float
    low: float
    high: float


class Cell(NamedTuple):
    """A block of the list, or the part of it that is asked about."""

    estimate: float
    size: int
    looks: int
    wrong: int
    """Among the looks."""
    least: int
    """Wrong ones that are known."""
    most: int
    """Wrong ones if all that is not decided is wrong."""


@dataclass(frozen=True)
class ReviewEstimate:
    """Errors in a ranked list, as far as decisions about some of its examples tell; made by `estimate`.

    Intervals hold the truth in 95% of all draws, whatever the ranking is. Positions count down the list, from 0.
    """

    plan: ReviewPlan
    verdict: Array
    """For every position 1 (wrong), 0 (right) or −1 (not decided)."""
    looks: Array
    """Positions of the plan that count as drawn."""
    reviewed: int
    """Length of the reviewed beginning."""
    probability: Array
    """Of being wrong: the given one, fitted to the looks; 0 or 1 where it is decided."""

    @property
    def found(self) -> int:
        """Errors found so far."""
        return int(self._before[WRONG][-1])

    @property
    def decided(self) -> int:
        """Examples with a decision."""
        return int(self._before[WRONG][-1] + self._before[RIGHT][-1])

    @cached_property
    def total(self) -> Interval:
        """Number of errors in the list."""
        return self.errors(0, self.plan.size)

    @property
    def share(self) -> Interval:
        """Share of errors in the list."""
        return Interval(*(value / self.plan.size if self.plan.size else 0.0 for value in self.total))

    @property
    def left(self) -> Interval:
        """Number of errors not found yet."""
        return Interval(*(max(value - self.found, 0.0) for value in self.total))

    @property
    def recall(self) -> Interval:
        """Share of all errors that is found; 1 where there are none."""
        estimate, low, high = (min(self.found / value, 1.0) if value else 1.0 for value in self.total)
        return Interval(estimate, high, low)

    def recall_of_first(self, count: int) -> Interval:
        """Share of all errors among the first of the list; both of its parts hold at 97.5%."""
        above, below = self.errors(0, count, MISS / 2), self.errors(count, self.plan.size, MISS / 2)
        pairs = zip(above, (below.estimate, below.high, below.low), strict=True)
        return Interval(*(inside / (inside + outside) if inside + outside else 1.0 for inside, outside in pairs))

    def precision(self, count: int) -> Interval:
        """Share of errors among the first of the list."""
        return Interval(*(value / min(count, self.plan.size) for value in self.errors(0, count)))

    def below(self, count: int) -> Interval:
        """Number of errors below the first of the list."""
        return self.errors(count, self.plan.size)

    def next(self, count: int = NEXT) -> Interval:
        """Number of errors not found yet among the next ones below the reviewed beginning."""
        start, stop = self.reviewed, min(self.reviewed + count, self.plan.size)
        known = self._before[WRONG][stop] - self._before[WRONG][start]
        return Interval(*(max(value - float(known), 0.0) for value in self.errors(start, stop)))

    def best_length(self) -> int:
        """How many from the top to take for wrong, for the best expected F1."""
        return length_of_best_f1(self.probability)

    def stop(self, share: float = WORTHWHILE) -> int:
        """How many from the top to look through: below, no hundred in a row should hold so large a share of errors.

        That goes by the fitted probabilities; how many errors lie above, `recall_of_first` says with an interval.
        """
        ahead = np.concatenate([[0], np.cumsum(self.probability)])
        first = np.arange(max(self.plan.size - NEXT, 0) + 1)
        rich = np.flatnonzero(ahead[np.minimum(first + NEXT, self.plan.size)] - ahead[first] >= share * NEXT)
        return min(int(rich[-1]) + NEXT // 2, self.plan.size) if len(rich) else 0

    def errors(self, start: int, stop: int, miss: float = MISS) -> Interval:
        """Number of errors from one position up to another."""
        inside = ((max(first, start), min(end, stop), sampled) for first, end, sampled in self._blocks)
        cells = [self._cell(*block) for block in inside if block[0] < block[1]]
        if not cells:
            return Interval(0.0, 0.0, 0.0)
        size, looks, wrong, least, most = np.array([cell[1:] for cell in cells]).T
        low, high = interval_of_errors(size, looks, wrong, least, most, miss)
        return Interval(min(max(sum(cell.estimate for cell in cells), low), high), low, high)

    @cached_property
    def _before(self) -> dict[int, Array]:
        """Number of wrong ones and of right ones before every position."""
        return {kind: np.concatenate([[0], np.cumsum(self.verdict == kind)]) for kind in (RIGHT, WRONG)}

    @cached_property
    def _drawn(self) -> tuple[Array, Array]:
        """The looks by position, and the number of wrong ones before each."""
        looks = np.sort(self.looks)
        return looks, np.concatenate([[0], np.cumsum(self.verdict[looks] == WRONG)])

    @cached_property
    def _blocks(self) -> list[tuple[int, int, bool]]:
        """First position, end, and whether the looks speak for it: the reviewed beginning, then the strata."""
        found: list[tuple[int, int, bool]] = []
        for first, end in zip(self.plan.starts, self.plan.ends, strict=True):
            cut = min(max(self.reviewed, first), end)
            if first < cut < end and self._seen(cut, end)[0] < FEWEST:
                cut = first
            found += [(first, cut, False)] if first < cut else []
            found += [(cut, end, True)] if cut < end else []
        return found

    def _seen(self, start: int, stop: int) -> tuple[int, int]:
        """Looks between two positions, and the wrong ones among them."""
        looks, wrong = self._drawn
        first, end = np.searchsorted(looks, [start, stop])
        return int(end - first), int(wrong[end] - wrong[first])

    def _cell(self, start: int, stop: int, sampled: bool) -> Cell:
        known = {kind: int(count[stop] - count[start]) for kind, count in self._before.items()}
        size, least, most = stop - start, known[WRONG], stop - start - known[RIGHT]
        looks, wrong = self._seen(start, stop) if sampled else (0, 0)
        expected = size * (wrong + float(self.probability[start:stop].mean())) / (looks + 1)
        return Cell(min(max(expected, least), most), size, looks, wrong, least, most)


def estimate(
    plan: ReviewPlan,
    decisions: Mapping[int, bool],
    probability: Array | None = None,
    skipped: Collection[int] = (),
) -> ReviewEstimate:
    """Read decisions about a list that has a plan.

    Args:
        plan: which examples to look at.
        decisions: whether the example at a position of the list is wrong.
        probability: of being wrong, in the order of the list, as before any look; better ones give better lists.
        skipped: positions somebody looked at and could not decide about; the estimates are about examples one can
            decide about.

    Example:
        ```python
        from sgoif.tasks.review import ReviewPlan, estimate

        plan = ReviewPlan.of(5000)
        found = estimate(plan, {position: position < 300 for position in plan.looks(40).tolist()})
        print(found.share)  # estimate, low, high
        ```
    """
    verdict = np.full(plan.size, UNKNOWN)
    places = np.fromiter(decisions, dtype=np.int64, count=len(decisions))
    if len(places) and (places.min() < 0 or places.max() >= plan.size):
        outside = places[(places < 0) | (places >= plan.size)][0]
        raise SettingError(f"a decision about position {outside} does not fit a list of {plan.size:,} examples")
    verdict[places] = np.fromiter((WRONG if wrong else RIGHT for wrong in decisions.values()), dtype=np.int64)
    looks = np.fromiter(_beginning(plan, decisions, skipped), dtype=np.int64)
    prior = prior_by_rank(plan.size) if probability is None else np.asarray(probability, dtype=np.float64)
    fitted = recalibrated(prior, looks, verdict[looks] == WRONG)
    return ReviewEstimate(plan, verdict, looks, _reviewed(verdict), np.where(verdict == UNKNOWN, fitted, verdict))


def _beginning(plan: ReviewPlan, decisions: Mapping[int, bool], skipped: Collection[int]) -> Iterator[int]:
    """The plan up to the first example without a decision."""
    for position in plan.draw(skipped):
        if position not in decisions:
            return
        yield position


def _reviewed(verdict: Array) -> int:
    """Length of the longest beginning of which enough is decided; it ends with a decision."""
    done = verdict != UNKNOWN
    enough = done & (np.cumsum(done) >= REVIEWED * np.arange(1, len(done) + 1))
    return int(np.flatnonzero(enough)[-1]) + 1 if enough.any() else 0
