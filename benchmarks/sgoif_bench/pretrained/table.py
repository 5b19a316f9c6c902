"""Tables of what finds wrong labels from a pretrained network: mean ± standard deviation over seeds.

sgoif-bench table FILE.jsonl --metric aupr --rows method --columns noise --by set
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sgoif_bench.pretrained.registry import in_order, title_of
from sgoif_bench.pretrained.sets import SETS
from sgoif_bench.tables.layout import Layout, Subject
from sgoif_bench.tables.lines import Metric

METRICS: Mapping[str, Metric] = {
    "aupr": Metric("AUPR"),
    "auroc": Metric("AUROC"),
    "p_at_100": Metric("precision of the first 100"),
    "seconds": Metric("seconds from folder to scores", 1, 1, higher_is_better=False, is_cost=True),
}


def value_of(line: Mapping[str, Any], metric: str) -> float | None:
    """A figure of a result line; None where it has none."""
    found = line["seconds"] if metric == "seconds" else line["metrics"][metric]
    return None if found is None else float(found)


def shown_label(name: str, value: Any) -> str:
    """A value of a field as a person reads it."""
    if name == "method":
        return title_of(value)
    if name == "metric":
        return METRICS[value].title
    return str(value) if name in ("set", "noise") else f"{name} {value}"


@dataclass(frozen=True)
class PretrainedTableSettings(Layout):
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
        orders={"set": list(SETS)},
        alike=frozenset({"method", "set", "noise", "seed", "metric"}),
        with_mean=True,
    )
