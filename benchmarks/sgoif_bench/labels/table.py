"""Tables of what finds wrong labels: mean ± standard deviation over seeds, for Markdown, LaTeX or a program.

    sgoif-bench table FILE.jsonl --metric aupr --rows method --columns noise --by set

How best and ties are marked stands in `bench.tables.layout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgoif_bench.labels.lines import METRICS, shown_label, value_of
from sgoif_bench.labels.recipes import TRAININGS
from sgoif_bench.labels.registry import in_order
from sgoif_bench.tables.layout import Layout, Subject


@dataclass(frozen=True)
class TableSettings(Layout):
    """Methods by noise, a table for every data set."""

    metric: str = "aupr"
    rows: str = "method"
    columns: str = "noise"
    by: str = "set"
    subject: ClassVar[Subject] = Subject(
        METRICS,
        value_of,
        shown_label,
        in_order,
        orders={"set": list(TRAININGS)},
        alike=frozenset({"method", "set", "noise", "seed", "shared", "metric"}),
        with_mean=True,
    )
