from __future__ import annotations

import re

import pytest
from review_cases import decisions, ranked_errors

from sgoif.tasks.review import ReviewPlan, estimate, report

SIZE = 5000


def text(looks: int, first: int = 0, rate: float = 0.1, size: int = SIZE) -> str:
    wrong, prior = ranked_errors(size, rate, 3)
    plan = ReviewPlan.of(size, prior)
    return report(estimate(plan, decisions([*plan.looks(looks), *range(first)], wrong), prior))


def test_it_says_how_many_are_wrong_found_and_left_and_where_to_stop() -> None:
    said = text(100)
    share = re.search(
        r"About ([\d.]+)% of 5,000 labels are wrong \(([\d.]+) to ([\d.]+)%\), from 100 random looks", said
    )
    assert share is not None
    assert float(share[2]) <= float(share[1]) <= float(share[3])
    assert re.search(r"Found: \d+, [\d.]+ to [\d.]+% of all; left: [\d,]+ to [\d,]+\.", said)
    assert re.search(r"In the next 100 of the list: about \d+ more\.", said)
    assert re.search(r"The first [\d,]+ hold \d+ to \d+% of all wrong labels\.", said)


def test_it_says_when_to_stop() -> None:
    said = text(200, first=2500)
    assert said.endswith("this is a place to stop.")
    assert "to 100% of all" in said


def test_too_few_looks_say_only_how_many_more_it_takes() -> None:
    assert text(4) == "6 more of the drawn examples, and it can be said how many labels are wrong."
    assert text(0, first=300).startswith("10 more")


def test_when_all_is_decided_the_truth_is_said() -> None:
    assert text(0, first=60, size=60) == "All 60 labels are decided. Wrong: 6."


def test_lists_without_errors_are_no_problem() -> None:
    said = text(40, rate=0)
    assert "Found: none yet; left: 0 to" in said
    assert said.startswith("About ")


@pytest.mark.parametrize("size", [1, 2, 9, 11, 101])
def test_short_lists_are_no_problem(size: int) -> None:
    for looks in range(0, size + 1, max(size // 5, 1)):
        assert text(looks, rate=0.5, size=size).endswith(".")
