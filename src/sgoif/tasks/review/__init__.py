"""How many of a ranked list are wrong, from a few dozen looks drawn by a plan; whatever the ranking is."""

from sgoif.tasks.review.estimates import Interval, ReviewEstimate, estimate
from sgoif.tasks.review.plan import ReviewPlan
from sgoif.tasks.review.ranked import RankedReview
from sgoif.tasks.review.report import report

__all__ = ["Interval", "RankedReview", "ReviewEstimate", "ReviewPlan", "estimate", "report"]
