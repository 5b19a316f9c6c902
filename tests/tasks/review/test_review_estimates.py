from __future__ import annotations

import time
from functools import cache
from typing import Any

import numpy as np
import pytest
from review_cases import decisions, ranked_errors

from sgoif.errors import SettingError
from sgoif.tasks.review import RankedReview, ReviewEstimate, ReviewPlan, estimate

SIZE = 2000


@cache
def reviewed(looks: int = 200, first: int = 0, separation: float = 2.5, seed: int = 0) -> tuple[ReviewEstimate, Any]:
    wrong, prior = ranked_errors(SIZE, 0.2, separation, seed)
    plan = ReviewPlan.of(SIZE, prior, seed)
    return estimate(plan, decisions([*plan.looks(looks), *range(first)], wrong), prior), wrong


@pytest.mark.parametrize("separation", [0, 2, 8, -2])
def test_intervals_cover_the_truth_whatever_ranking_and_prior_are(separation: float) -> None:
    draws = np.random.default_rng(1)
    hits: list[bool] = []
    for seed in range(72):
        rate = (0, 0.01, 0.05, 0.2, 0.4, 0.7)[seed // 12]
        wrong, fair = ranked_errors(SIZE, rate, separation, seed)
        prior = (fair, None, draws.random(SIZE), 1 - fair)[seed % 4]
        plan = ReviewPlan.of(SIZE, prior, seed)
        found = estimate(plan, decisions(plan.looks((40, 100)[seed // 4 % 2]), wrong), prior)
        ranges = (
            (found.total, wrong.sum()),
            (found.errors(0, 300), wrong[:300].sum()),
            (found.left, found_left(found, wrong)),
        )
        hits += [low - 1e-6 <= truth <= high + 1e-6 for (_, low, high), truth in ranges]
    assert np.mean(hits) >= 0.92


def found_left(found: ReviewEstimate, wrong: Any) -> int:
    return int(wrong.sum()) - found.found


def test_a_bad_prior_may_not_cost_much_and_a_good_ranking_is_worth_a_lot() -> None:
    widths = {}
    for name, separation in (("good", 8.0), ("random", 0.0)):
        found = [reviewed(100, separation=separation, seed=seed)[0].share for seed in range(5)]
        widths[name] = np.median([share.high - share.low for share in found])
    plain = 0.164  # Clopper and Pearson, 20 of 100
    assert widths["good"] < 0.65 * plain
    assert widths["random"] < 1.1 * plain


def test_estimates_are_right_on_average() -> None:
    gaps = [reviewed(40, separation=separation, seed=seed)[0].share.estimate - 0.2
            for separation in (0.0, 2.5) for seed in range(40)]  # fmt: skip
    assert abs(np.mean(gaps)) < 0.02


def test_what_is_decided_is_certain() -> None:
    wrong, prior = ranked_errors(300, 0.2, 2)
    found = estimate(ReviewPlan.of(300, prior), decisions(range(300), wrong), prior)
    assert found.total == (60, 60, 60)
    assert found.recall == (1, 1, 1)
    assert found.left == (0, 0, 0)
    assert found.precision(30) == pytest.approx((wrong[:30].mean(),) * 3)
    np.testing.assert_array_equal(found.probability, wrong)


def test_nothing_decided_says_nothing() -> None:
    found = estimate(ReviewPlan.of(SIZE), {})
    assert found.total[1:] == (0, SIZE)
    assert (found.found, found.decided, found.reviewed) == (0, 0, 0)
    assert found.recall[1] == 0


def test_the_reviewed_beginning_is_known_although_it_is_no_random_sample() -> None:
    found, wrong = reviewed(40, first=400)
    assert found.reviewed >= 400
    assert found.errors(0, 400) == (wrong[:400].sum(),) * 3
    before, _ = reviewed(40)
    assert found.total.low >= wrong[:400].sum()
    assert found.total.high - found.total.low < before.total.high - before.total.low


def test_ordinary_decisions_do_not_pass_for_random_looks() -> None:
    """Somebody goes down the list after the looks: were these taken for a sample, all of it would look wrong."""
    misses = 0
    for seed in range(40):
        found, wrong = reviewed(40, first=300, seed=seed)
        misses += not found.total.low <= wrong.sum() <= found.total.high
        assert len(found.looks) < 100
    assert misses <= 5


def test_scattered_decisions_are_limits_alone() -> None:
    wrong, prior = ranked_errors(SIZE, 0.2, 2.5)
    plan = ReviewPlan.of(SIZE, prior)
    looks = plan.looks(40)
    chosen = np.flatnonzero(wrong)[::2]
    found = estimate(plan, decisions([*looks, *chosen], wrong), prior)
    assert found.total.low >= len(chosen)
    plain = estimate(plan, decisions(looks, wrong), prior)
    assert found.total.high == pytest.approx(plain.total.high, rel=0.15)
    assert found.total.low <= wrong.sum() <= found.total.high


def test_looks_count_up_to_the_first_that_is_missing() -> None:
    wrong, _ = ranked_errors(SIZE, 0.2, 2.5)
    plan = ReviewPlan.of(SIZE)
    looks = plan.looks(60).tolist()
    made = decisions(looks[:30] + looks[31:], wrong)
    assert estimate(plan, made).looks.tolist() == looks[:30]
    passed_over = estimate(plan, made, skipped={looks[30]})
    assert looks[30] not in passed_over.looks
    assert len(passed_over.looks) > 35


def test_a_few_gaps_do_not_end_the_reviewed_beginning() -> None:
    wrong, _ = ranked_errors(SIZE, 0.2, 2.5)
    found = estimate(ReviewPlan.of(SIZE), decisions(set(range(200)) - {50, 51, 120}, wrong))
    assert found.reviewed == 200
    _, low, high = found.errors(0, 200)
    assert (low, high) == (
        wrong[:200].sum() - wrong[[50, 51, 120]].sum(),
        wrong[:200].sum() + (~wrong[[50, 51, 120]]).sum(),
    )
    sparse = estimate(ReviewPlan.of(SIZE), decisions(range(0, 200, 2), wrong))
    assert sparse.reviewed == 1


def test_parts_of_the_list_add_up() -> None:
    found, _ = reviewed(200, first=100)
    parts = found.errors(0, 500).estimate + found.below(500).estimate
    assert parts == pytest.approx(found.total.estimate, rel=0.1)
    assert found.errors(500, 500) == (0, 0, 0)
    assert found.errors(SIZE - 10, SIZE + 90).high <= 10


def test_the_share_among_the_first_is_foretold() -> None:
    misses = 0
    for seed in range(20):
        found, wrong = reviewed(200, seed=seed)
        count = found.stop()
        _, low, high = found.recall_of_first(count)
        misses += not low <= wrong[:count].sum() / wrong.sum() <= high
        assert wrong[count:].mean() < 0.08
    assert misses <= 2


def test_the_list_after_the_looks_is_nearly_the_best_one() -> None:
    shares = []
    for seed in range(20):
        found, wrong = reviewed(100, seed=seed)
        hits = np.cumsum(wrong)
        f1 = 2 * hits / (np.arange(1, SIZE + 1) + hits[-1])
        shares.append(f1[found.best_length() - 1] / f1.max())
    assert np.quantile(shares, 0.1) >= 0.95


def test_an_estimate_is_ready_before_anybody_waits() -> None:
    wrong, prior = ranked_errors(50_000, 0.1, 2.5)
    plan = ReviewPlan.of(50_000, prior)
    made = decisions(plan.looks(200), wrong)
    spent = []
    for _ in range(5):
        start = time.process_time()
        assert estimate(plan, made, prior).share.high > 0.08
        spent.append(time.process_time() - start)
    assert min(spent) < 0.05


def test_a_decision_must_fit_the_list() -> None:
    with pytest.raises(SettingError, match="position 2000 does not fit a list of 2,000 examples"):
        estimate(ReviewPlan.of(SIZE), {3: True, SIZE: True})


def test_examples_may_have_indices_of_their_own() -> None:
    wrong, prior = ranked_errors(SIZE, 0.2, 2.5)
    index = np.random.default_rng(0).permutation(10 * SIZE)[:SIZE]
    review, plan = RankedReview(index, prior, seed=4), ReviewPlan.of(SIZE, prior, 4)
    np.testing.assert_array_equal(review.looks(40), index[plan.looks(40)])
    truth = dict(zip(index.tolist(), wrong.tolist(), strict=True))
    found = review.update({i: truth[i] for i in review.looks(40).tolist()})
    assert found.total == estimate(plan, decisions(plan.looks(40), wrong), prior).total
    with pytest.raises(SettingError, match="example -5"):
        review.update({-5: True})
    with pytest.raises(SettingError, match="listed once"):
        RankedReview(np.array([1, 2, 2]))
