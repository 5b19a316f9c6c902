"""A review of examples that have indices of their own: what `plan` and `estimates` count by position in the list."""

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

import numpy as np

from sgoif.core.types import Array
from sgoif.errors import SettingError
from sgoif.tasks.review.estimates import ReviewEstimate, estimate
from sgoif.tasks.review.plan import ReviewPlan


class RankedReview:
    """A review of ranked examples.

    Args:
        index: of every example, the most suspicious first; a number or a name.
        probability: of being wrong, in the same order; nan where it is not known.
        seed: another one draws other examples.
        plan: one that was made before, where there is one.

    Example:
        ```python
        import numpy as np
        from sgoif.tasks.review import RankedReview

        review = RankedReview(np.array([7, 3, 9, 1]))
        print(review.looks(2))  # indices to look at
        print(review.update({9: True, 1: False}).total)
        ```
    """

    def __init__(
        self, index: Array, probability: Array | None = None, *, seed: int = 0, plan: ReviewPlan | None = None
    ) -> None:
        self.index, self.probability = np.asarray(index), probability
        self.plan = plan or ReviewPlan.of(len(self.index), probability, seed)
        self._position = {number: position for position, number in enumerate(self.index.tolist())}
        if len(self._position) != self.plan.size:
            raise SettingError(
                f"{len(self.index):,} examples with {len(self._position):,} different indices do not fit a plan for"
                f" {self.plan.size:,}: every example is listed once"
            )

    def looks(self, count: int, skipped: Collection[Any] = ()) -> Array:
        """Indices of the first so many examples to look at; others come in the place of those that were skipped."""
        return np.asarray(self.index[list(islice(self.plan.draw(self._positions(skipped)), count))])

    def update(self, wrong: Mapping[Any, bool], skipped: Collection[Any] = ()) -> ReviewEstimate:
        """Read decisions: whether the example with an index is wrong, and where nobody could tell."""
        missing = [number for number in wrong if number not in self._position]
        if missing:
            raise SettingError(
                f"a decision about example {missing[0]} was given, which is none of the {self.plan.size:,} examples of"
                " the list"
            )
        found = {self._position[number]: bool(value) for number, value in wrong.items()}
        return estimate(self.plan, found, self.probability, self._positions(skipped))

    def _positions(self, some: Collection[Any]) -> set[int]:
        """Where those of these examples that are in the list stand in it."""
        return {self._position[number] for number in some if number in self._position}
