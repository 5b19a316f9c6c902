"""What a review has shown so far, in plain English; the one place where these sentences are made."""

import math

from sgoif.tasks.review.estimates import NEXT, Interval, ReviewEstimate

ENOUGH = 10
"""Looks from which on something is said."""


def report(found: ReviewEstimate) -> str:
    """How many labels are wrong, how many are found, how many are left, and when to stop.

    Example:
        ```python
        from sgoif.tasks.review import ReviewPlan, estimate, report

        plan = ReviewPlan.of(5000)
        print(report(estimate(plan, {i: i < 300 for i in plan.looks(40).tolist()})))
        ```
    """
    size, looks = found.plan.size, len(found.looks)
    if found.decided == size:
        return f"All {size:,} labels are decided. Wrong: {found.found:,}."
    if looks < min(ENOUGH, size):
        return f"{ENOUGH - looks} more of the drawn examples, and it can be said how many labels are wrong."
    share = found.share
    said = [
        f"About {_percent(share.estimate)}% of {size:,} labels are wrong ({_percents(share)}), from {looks:,} random"
        " looks.",
        _found(found),
    ]
    if found.reviewed < size:
        count = min(NEXT, size - found.reviewed)
        said.append(f"In the next {count:,} of the list: about {_about(found.next(count).estimate)} more.")
    stop = found.stop()
    if stop > found.reviewed:
        said.append(f"The first {stop:,} hold {_percents(found.recall_of_first(stop))} of all wrong labels.")
    else:
        said.append("Below, fewer than 1 in 20 are wrong: this is a place to stop.")
    return " ".join(said)


def _found(found: ReviewEstimate) -> str:
    left = found.left
    rest = f"{_about(left.low, down=True)} to {_about(left.high, down=False)}"
    if not found.found:
        return f"Found: none yet; left: {rest}."
    return f"Found: {found.found:,}, {_percents(found.recall)} of all; left: {rest}."


def _percents(share: Interval) -> str:
    low, high = _percent(share.low, down=True), _percent(share.high, down=False)
    return f"{low}%" if low == high else f"{low} to {high}%"


def _percent(share: float, down: bool | None = None) -> str:
    """A share in percent, with one digit below ten; ends of intervals are rounded outwards."""
    digits = 1 if share < 0.0995 else 0
    return f"{_rounded(100 * share, digits, down):.{digits}f}".removesuffix(".0")


def _about(count: float, down: bool | None = None) -> str:
    """A number with two digits that count; ends of intervals are rounded outwards."""
    digits = 0 if count < 100 else 1 - math.floor(math.log10(count))
    return f"{_rounded(count, digits, down):,.0f}"


def _rounded(value: float, digits: int, down: bool | None) -> float:
    scaled = round(value * 10.0**digits, 6)
    whole = round(scaled) if down is None else math.floor(scaled) if down else math.ceil(scaled)
    return whole / 10.0**digits
