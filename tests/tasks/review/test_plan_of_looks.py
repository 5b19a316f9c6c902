from __future__ import annotations

import numpy as np
import pytest
from review_cases import ranked_errors

from sgoif.errors import SettingError
from sgoif.tasks.review import ReviewPlan
from sgoif.tasks.review.plan import STRATA, key

SIZE = 5000


def mix(h: int) -> int:
    """The same in arithmetic of whole numbers, as another language would write it."""
    h ^= h >> 16
    h = h * 0x85EBCA6B % 2**32
    h ^= h >> 13
    h = h * 0xC2B2AE35 % 2**32
    return h ^ h >> 16


def plain_key(seed: int, position: int) -> int:
    step = 0x9E3779B9
    return mix((mix(position ^ mix((seed + step) % 2**32)) + step) % 2**32)


def plain_looks(ends: list[int], seed: int, count: int) -> list[int]:
    """The plan as its docstring has it, without numpy."""
    starts = [0, *ends[:-1]]
    orders = [
        sorted(range(start, end), key=lambda i: (plain_key(seed, i), i))
        for start, end in zip(starts, ends, strict=True)
    ]
    found: list[int] = []
    turn = 0
    while len(found) < min(count, ends[-1]):
        found += [order[turn] for order in reversed(orders) if turn < len(order)]
        turn += 1
    return found[:count]


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_the_draw_is_what_the_docstring_says_in_any_language(seed: int) -> None:
    positions = np.array([0, 1, 2, 4999, 2**31, 2**32 - 1])
    assert key(seed, positions).tolist() == [plain_key(seed, int(position)) for position in positions]
    plan = ReviewPlan.of(SIZE, ranked_errors(SIZE, 0.1, 2)[1], seed)
    assert plan.looks(300).tolist() == plain_looks(list(plan.ends), seed, 300)


def test_more_looks_continue_fewer_ones_until_all_are_drawn() -> None:
    plan = ReviewPlan.of(333, seed=3)
    whole = plan.looks(1000)
    assert sorted(whole.tolist()) == list(range(333))
    for count in (1, 20, 41, 332):
        np.testing.assert_array_equal(plan.looks(count), whole[:count])


def test_every_stratum_gets_as_many_looks() -> None:
    plan = ReviewPlan.of(SIZE, ranked_errors(SIZE, 0.1, 2)[1])
    assert len(plan.ends) == STRATA
    drawn = np.searchsorted(plan.ends, plan.looks(2 * STRATA), side="right")
    np.testing.assert_array_equal(np.bincount(drawn), np.full(STRATA, 2))


def test_every_position_of_a_stratum_is_drawn_equally_often() -> None:
    plans = [ReviewPlan(100, (40, 100), seed) for seed in range(4000)]
    count = np.bincount(np.concatenate([plan.looks(10) for plan in plans]), minlength=100)
    for start, end in ((0, 40), (40, 100)):
        expected = 4000 * 5 / (end - start)
        chi_square = ((count[start:end] - expected) ** 2 / expected).sum()
        assert abs(chi_square - (end - start - 1)) < 4 * np.sqrt(2 * (end - start))


def test_half_of_the_looks_are_spread_evenly_whatever_the_prior_says() -> None:
    sure = np.zeros(SIZE)
    sure[100] = 0.5  # the prior is in doubt about one example alone
    for plan in (ReviewPlan.of(SIZE, sure), ReviewPlan.of(SIZE)):
        sizes = np.diff([0, *plan.ends])
        assert sizes.max() <= SIZE / STRATA / 0.5 + 1
        assert plan.ends[0] < SIZE / 100  # the head of the list is drawn densest


@pytest.mark.parametrize("prior", [np.zeros(50), np.ones(50), np.full(50, np.nan), np.linspace(1, 0, 50)])
def test_a_prior_may_be_anything(prior: np.ndarray) -> None:
    assert ReviewPlan.of(50, prior).ends[-1] == 50


def test_lists_may_be_short() -> None:
    for size in range(1, 30):
        assert sorted(ReviewPlan.of(size).looks(40).tolist()) == list(range(size))


def test_what_nobody_can_decide_about_is_passed_over() -> None:
    plan = ReviewPlan.of(SIZE)
    first = plan.looks(40).tolist()
    drawn = plan.draw(skipped={first[0]})
    replaced = [next(drawn) for _ in range(40)]
    last = sorted(first[::STRATA], key=first.index)  # those of the stratum that the plan begins with
    assert [replaced[0], *replaced[1:STRATA]] == [last[1], *first[1:STRATA]]
    assert replaced[STRATA] == plan.looks(100)[2 * STRATA]


@pytest.mark.parametrize(
    ("size", "ends", "seed"),
    [(10, (5, 5, 10), 0), (10, (5, 9), 0), (10, (), 0), (10, (0, 10), 0), (10, (5, 10), -1), (10, (5, 10), 2**32)],
)
def test_what_makes_no_plan_is_refused(size: int, ends: tuple[int, ...], seed: int) -> None:
    with pytest.raises(SettingError, match="make no plan"):
        ReviewPlan(size, ends, seed)


def test_a_prior_of_another_list_is_refused() -> None:
    with pytest.raises(SettingError, match="5 examples with 4 probabilities"):
        ReviewPlan.of(5, np.zeros(4))
    with pytest.raises(SettingError, match="0 examples"):
        ReviewPlan.of(0)
