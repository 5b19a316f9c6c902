"""Which examples of a ranked list a person should look at, so that the answers speak for the whole list.

Positions 0 … N − 1 count down the list, the most suspicious first. The plan is made of whole numbers, the ends of its
strata and a seed, and these alone say everything else, in any language:

1. *Density.* d_i = 1/2 · u_i + 1/4 · g_i + 1/4 · s_i, each summing to 1: u_i = 1/N, g_i ∝ 1 / (i + max(N/500, 1)), so
   that the head of the list is drawn densest, and s_i ∝ √(p_i (1 − p_i)), densest where a probability is in doubt.
   Without probabilities, or where all are 0 or 1, g_i stands in for s_i. Half of the looks are spread evenly over the
   list, so a bad prior costs at most the other half.
2. *Strata.* Blocks of positions between which the sum of d is cut in 20 equal parts: stratum h ends after the first
   position where the running sum reaches h/20. Blocks that would be empty are left out.
3. *Draw.* In every stratum positions are sorted by `key(seed, position)`, then by position: a random order.
4. *Looks.* The plan goes round the strata, from the last to the first, again and again, and takes the next of each in
   that order; a stratum that is used up is passed over. `looks(count)` are the first `count`, so that more looks
   continue fewer ones; those of a stratum are a simple random sample of its positions, without replacement.

    key(seed, i) = mix(mix(i XOR mix(seed + c)) + c),  c = 0x9e3779b9, in 32 bits without sign,
    mix(h): h ^= h >> 16; h *= 0x85ebca6b; h ^= h >> 13; h *= 0xc2b2ae35; h ^= h >> 16.

Twenty strata are enough to gain what a ranking offers, and with 40 looks there are two in each.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Self

import numpy as np

from sgoif.core.types import Array
from sgoif.errors import SettingError

STRATA = 20
EVENLY, BY_RANK = 0.5, 0.25
TOP = 500
"""The head of the list is the first N/500 positions."""
SEEDS = 2**32


@dataclass(frozen=True)
class ReviewPlan:
    """A random draw from a ranked list, denser where there is more to learn.

    Example:
        ```python
        from sgoif.tasks.review import ReviewPlan

        plan = ReviewPlan.of(5000, seed=0)
        print(plan.looks(40))  # positions in the list to look at
        ```
    """

    size: int
    """N, the examples of the list."""
    ends: tuple[int, ...]
    """One behind the last position of every stratum."""
    seed: int = 0

    def __post_init__(self) -> None:
        whole = all(isinstance(n, int) for n in (self.size, self.seed, *self.ends))
        rising = list(self.ends) == sorted({*self.ends} - {0})
        if not whole or not rising or not self.ends or self.ends[-1] != self.size or not 0 <= self.seed < SEEDS:
            raise SettingError(
                f"size={self.size!r}, ends={self.ends!r:.80} and seed={self.seed!r} make no plan: expected are whole"
                f" numbers, ends that rise to size, and a seed from 0 to {SEEDS - 1}"
            )

    @classmethod
    def of(cls, size: int, probability: Array | None = None, seed: int = 0) -> Self:
        """Make a plan for a list.

        Args:
            size: number of examples in the list.
            probability: of being wrong, for every example in the order of the list; what is not known may be nan.
            seed: another one draws other examples.
        """
        if size < 1 or (probability is not None and len(probability) != size):
            given = "no probabilities" if probability is None else f"{len(probability):,} probabilities"
            raise SettingError(f"a list of {size:,} examples with {given} cannot be reviewed: one of each is needed")
        return cls(int(size), _ends(_density(size, probability)), int(seed))

    @property
    def starts(self) -> tuple[int, ...]:
        """The first position of every stratum."""
        return (0, *self.ends[:-1])

    def looks(self, count: int) -> Array:
        """The first `count` positions to look at, in the order of the draw; all of them where there are fewer."""
        return np.fromiter(islice(self.draw(), count), dtype=np.int64)

    def draw(self, skipped: Collection[int] = ()) -> Iterator[int]:
        """All positions in the order of the draw, without those that nobody can decide about."""
        orders = [iter(order) for order in reversed(self._orders)]
        while orders:
            going = []
            for order in orders:
                for position in order:
                    if position not in skipped:
                        yield position
                        going.append(order)
                        break
            orders = going

    @cached_property
    def _orders(self) -> list[list[int]]:
        """The positions of every stratum, each in its random order."""
        drawn = key(self.seed, np.arange(self.size))
        pairs = zip(self.starts, self.ends, strict=True)
        return [(start + np.argsort(drawn[start:end], kind="stable")).tolist() for start, end in pairs]


def key(seed: int, positions: Array) -> Array:
    """32 bits for every position that look random."""
    step = np.uint32(0x9E3779B9)
    with np.errstate(over="ignore"):
        start = _mixed(np.array([seed], dtype=np.uint32) + step)
        return _mixed(_mixed(positions.astype(np.uint32) ^ start) + step)


def _mixed(bits: Array) -> Array:
    bits = (bits ^ (bits >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return np.asarray(bits ^ (bits >> np.uint32(16)))


def _density(size: int, probability: Array | None) -> Array:
    """How densely every position is drawn; sums to 1."""
    by_rank = 1 / (np.arange(size) + max(size / TOP, 1.0))
    by_rank /= by_rank.sum()
    doubt = by_rank
    if probability is not None:
        p = np.clip(np.nan_to_num(np.asarray(probability, dtype=np.float64)), 0, 1)
        spread = np.sqrt(p * (1 - p))
        doubt = spread / spread.sum() if spread.sum() > 0 else by_rank
    return np.asarray(EVENLY / size + BY_RANK * by_rank + (1 - EVENLY - BY_RANK) * doubt)


def _ends(density: Array) -> tuple[int, ...]:
    """One behind the last position of every block of equal density."""
    running = np.cumsum(density)
    inner = np.searchsorted(running, running[-1] * np.arange(1, STRATA) / STRATA) + 1
    return tuple(int(end) for end in np.unique(np.minimum([*inner, len(density)], len(density))))
