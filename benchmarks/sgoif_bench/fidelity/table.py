"""Results as tables: mean ± standard deviation over seeds, for Markdown, LaTeX or a program.

sgoif-bench table FILE.jsonl --metric lds,seconds --rows method --columns wrong_share --by set

A table holds methods that answered equally many queries: one that ran out of time is in a table of its own, since the
mean over other queries is another figure. Intervals (`lds_low`, `lds_high`) are those of one procedure,
`lds.bootstrap`. The last rows repeat the best step of every sweep of dampings (`sweeps`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

from sgoif_bench.fidelity.recipes import TRAININGS
from sgoif_bench.fidelity.registry import in_order, title_of
from sgoif_bench.fidelity.sweeps import BEST, SweptTable, title_of_best
from sgoif_bench.journal import Line
from sgoif_bench.tables.layout import Layout, Subject
from sgoif_bench.tables.lines import Metric

METRICS: Mapping[str, Metric] = {
    "lds": Metric("LDS", 1, 3),
    "lds_low": Metric("LDS, lower end", 1, 3),
    "lds_high": Metric("LDS, upper end", 1, 3),
    "lds_loss": Metric("LDS of the loss", 1, 3),
    "confidence_spearman": Metric("confidence and LDS, Spearman", 1, 3),
    "error_spearman": Metric("expected and real error, Spearman", 1, 3),
    "lds_reliability": Metric("reliability of a query's LDS", 1, 3),
    "left_out": Metric("groups left out, Spearman", 1, 3),
    "alone": Metric("left out alone, Spearman", 1, 3),
    "relabelled": Metric("labels changed, Spearman, mean over sizes", 1, 3),
    "wrong_aupr": Metric("AUPR of wrong labels"),
    "wrong_auroc": Metric("AUROC of wrong labels"),
    "seconds": Metric("seconds added", 1, 2, higher_is_better=False, is_cost=True),
    "seconds_per_query": Metric("seconds per query", 1, 4, higher_is_better=False, is_cost=True),
    "trainings": Metric("further trainings", 1, 0, higher_is_better=False),
    "memory": Metric("peak memory, MiB", 2**-20, 0, higher_is_better=False, is_cost=True),
}


BY_SIZE = ("left_out", "relabelled")


def value_of(line: Mapping[str, Any], metric: str) -> float | None:
    """A figure of a result line; None where it has none, as for a method that could not run."""
    if line["error"] is not None:
        return None
    if metric == "memory":
        return float(line["memory"]["peak_bytes"])
    found = line.get(metric, line["metrics"].get(metric))
    if metric == "alone":
        found = found and found["spearman"]
    elif metric in BY_SIZE:
        found = fmean(part["spearman"] for part in found.values()) if found else None
    return None if found is None else float(found)


def laid_out(line: Line) -> Line:
    """A line whose share of wrong labels, kind and queries answered can lay out a table, as if of its recipe."""
    answered = len(line["metrics"].get("lds_by_query", [])) or line["queries"]
    further = {"wrong_share": line["wrong_share"], "kind": line["kind"], "queries": answered}
    return {**line, "recipe": {**line["recipe"], **further}}


def shown_label(name: str, value: Any) -> str:
    """A value of a field as a person reads it."""
    if name == "method":
        return title_of_best(value) if value.endswith(BEST) else title_of(value)
    if name == "metric":
        return METRICS[value].title
    if name == "wrong_share":
        return f"{100 * value:g}% wrong labels" if value else "no wrong labels"
    if name == "queries":
        return f"{value} queries"
    return str(value) if name == "set" else f"{name} {value}"


@dataclass(frozen=True)
class FidelityTableSettings(Layout):
    """Metrics of every method, a table for every data set, share of wrong labels and number of queries."""

    metric: str = "lds,seconds"
    rows: str = "method"
    columns: str = "metric"
    by: str = "set,wrong_share,queries"
    subject: ClassVar[Subject] = Subject(
        METRICS,
        value_of,
        shown_label,
        in_order,
        orders={"set": list(TRAININGS)},
        alike=None,
        laid_out=laid_out,
        table=SweptTable,
    )
