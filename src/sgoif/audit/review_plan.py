"""review.json: the ranked list of an audit as it is reviewed, and the plan of which images to look at.

It is written once. An audit that is resumed ranks anew, and may do so by what was decided; looks that were drawn from
the first list are a random sample of that one alone.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.audit.errors import RunDirectoryError
from sgoif.core.provenance import write_json
from sgoif.images.text import shown
from sgoif.tasks.review import RankedReview, ReviewPlan

REVIEW = "review.json"
DIGITS = 4


def write_review_plan(folder: Path, paths: Sequence[str], probability: Sequence[float]) -> RankedReview:
    """Write the plan of a review for a list, the most suspicious first, unless there is one for the same images.

    Args:
        folder: the run directory.
        paths: what the images are called, in the order of the list.
        probability: of a wrong label, in the same order; nan where it is not known.
    """
    if (folder / REVIEW).exists():
        kept = read_review_plan(folder)
        if sorted(kept.index.tolist()) == sorted(paths):
            return kept
    rounded = np.round(np.asarray(probability, dtype=np.float64), DIGITS)
    plan = ReviewPlan.of(len(paths), rounded)
    known = [None if np.isnan(value) else value for value in rounded.tolist()]
    record = {"size": plan.size, "seed": plan.seed, "ends": plan.ends, "paths": list(paths), "probability": known}
    write_json(folder / REVIEW, record)
    return _review(record)


def read_review_plan(folder: Path) -> RankedReview:
    """The list and its plan, by path."""
    try:
        return _review(json.loads((folder / REVIEW).read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunDirectoryError(
            f"{shown(folder / REVIEW)} is damaged ({error!r:.200}); remove it to draw anew; the looks taken"
            " so far then count as ordinary decisions"
        ) from error


def _review(record: dict[str, Any]) -> RankedReview:
    paths = np.empty(len(record["paths"]), dtype=object)
    paths[:] = record["paths"]
    probability = np.array([np.nan if value is None else value for value in record["probability"]], dtype=np.float64)
    if len(probability) != len(paths):
        raise ValueError(f"{len(paths)} paths and {len(probability)} probabilities")
    plan = ReviewPlan(record["size"], tuple(record["ends"]), record["seed"])
    return RankedReview(paths, probability, plan=plan)
