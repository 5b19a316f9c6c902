"""Chance: what removing as many examples at random does."""

from __future__ import annotations

from sgoif_bench.labels.rivals.common import numpy_stream
from sgoif_bench.poisoning.case import Case, Finding

STREAM = 97


def chance(case: Case) -> Finding:
    """Random numbers."""
    return Finding(numpy_stream(case.problem, STREAM).random(len(case.problem)))
