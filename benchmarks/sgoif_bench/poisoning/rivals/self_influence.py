"""Self-influence at the end of training; paper and formula stand in `bench.labels.rivals.self_influence`.

There is no rule of its own for what to remove.
"""

from __future__ import annotations

from sgoif_bench.labels.rivals.self_influence import self_influence_of
from sgoif_bench.poisoning.case import Case, Finding


def self_influence(case: Case) -> Finding:
    """How much every example's own loss would rise without it."""
    found = self_influence_of(case.end, case.tell)
    return Finding(found.suspicion, details=found.details)
