"""Tables of what training despite wrong labels comes to: mean ± standard deviation over seeds.

    sgoif-bench table FILE.jsonl --metric accuracy --rows method --columns noise --by set,tail

Best and ties are marked as in tables of `sgoif-bench labels`. The oracle stands in the table, but it is no method: it
is never the best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sgoif_bench.curriculum.recipes import TRAININGS
from sgoif_bench.curriculum.registry import METHODS, in_order, title_of
from sgoif_bench.tables.cells import Label, Table
from sgoif_bench.tables.layout import Layout, Subject
from sgoif_bench.tables.lines import Metric

METRICS: Mapping[str, Metric] = {
    "accuracy": Metric("test accuracy"),
    "accuracy_last": Metric("test accuracy, last three epochs"),
    "accuracy_best": Metric("test accuracy, best epoch"),
    "minority_recall": Metric("recall of minority classes"),
    "worst_recall": Metric("recall of the worst class"),
    "wrong_weight": Metric("wrong labels, % of the weight", higher_is_better=False),
    "overhead": Metric("time with the method over time without", 1, 2, higher_is_better=False),
    "seconds": Metric("seconds to train", 1, 1, higher_is_better=False, is_cost=True),
    "trainings": Metric("trainings", 1, 2, higher_is_better=False, is_cost=True),
    "memory": Metric("peak memory, MiB", 2**-20, 0, higher_is_better=False, is_cost=True),
}


class Compared(Table):
    """A table in which a ceiling is shown but not compared."""

    def best(self, column: Label) -> tuple[set[Label], set[Label]]:
        if "method" not in self.row_fields:
            return super().best(column)
        place = list(self.row_fields).index("method")
        rows = self.rows
        try:
            self.rows = [row for row in rows if row[place] not in METHODS or not METHODS[row[place]].knows_truth]
            return super().best(column)
        finally:
            self.rows = rows


def value_of(line: Mapping[str, Any], metric: str) -> float | None:
    """A figure of a result line; None where it has none."""
    if metric == "memory":
        found = line["memory"]["peak_bytes"]
    else:
        found = line[metric] if metric in ("seconds", "trainings") else line["metrics"].get(metric)
    return None if found is None else float(found)


def shown_label(name: str, value: Any) -> str:
    """A value of a field as a person reads it."""
    if name == "method":
        return title_of(value)
    if name == "metric":
        return METRICS[value].title
    if name == "tail":
        return "" if value is None else f"long tail 1:{value:g}"
    if isinstance(value, bool) or value is None:
        return f"{name}: {'none' if value is None else 'yes' if value else 'no'}"
    if name == "noise":
        return "no noise" if value == "none" else str(value)
    return str(value) if name == "set" else f"{name} {value}"


@dataclass(frozen=True)
class CurriculumTableSettings(Layout):
    """Methods by noise, a table for every data set and tail."""

    metric: str = "accuracy"
    rows: str = "method"
    columns: str = "noise"
    by: str = "set,tail"
    subject: ClassVar[Subject] = Subject(
        METRICS,
        value_of,
        shown_label,
        in_order,
        orders={"set": list(TRAININGS)},
        alike=frozenset({"method", "set", "noise", "seed", "tail", "metric"}),
        table=Compared,
    )
