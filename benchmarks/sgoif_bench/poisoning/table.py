"""Tables of results on poison: mean ± standard deviation over seeds, for Markdown, LaTeX or a program.

    sgoif-bench table FILE.jsonl --metric aupr,success_after --rows method --columns attack --by set,setting

Methods that start from victims and methods that know nothing answer different questions, so by default each kind has a
table of its own. Best and ties are marked as in tables of `sgoif-bench labels`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sgoif_bench.journal import Line
from sgoif_bench.poisoning.attacks import naming
from sgoif_bench.poisoning.recipes import TRAININGS
from sgoif_bench.poisoning.registry import KNOWN, UNKNOWN, in_order, title_of
from sgoif_bench.tables.layout import Layout, Subject
from sgoif_bench.tables.lines import Metric

METRICS: Mapping[str, Metric] = {
    "aupr": Metric("AUPR"),
    "auroc": Metric("AUROC"),
    "p_at_poison": Metric("P@poison"),
    "selected": Metric("removed", 1, 0, higher_is_better=False),
    "selected_share": Metric("removed, % of all", higher_is_better=False),
    "precision": Metric("precision of what is removed"),
    "recall": Metric("recall of what is removed"),
    "poison_left": Metric("poison left", 1, 1, higher_is_better=False),
    "success_before": Metric("attack success before, %", higher_is_better=False),
    "success_after": Metric("attack success after removal, %", higher_is_better=False),
    "accuracy_before": Metric("accuracy before, %"),
    "accuracy_after": Metric("accuracy after removal, %"),
    "accuracy_lost": Metric("accuracy lost, points", 100, 2, higher_is_better=False),
    "seconds": Metric("seconds", 1, 1, higher_is_better=False, is_cost=True),
    "finding_seconds": Metric("seconds after training", 1, 1, higher_is_better=False),
    "memory": Metric("peak memory, MiB", 2**-20, 0, higher_is_better=False, is_cost=True),
}
SETTINGS = {KNOWN: "victims known", UNKNOWN: "nothing known"}


def laid_out(line: Line) -> Line:
    """A line whose attack and setting can be used to lay out a table, as if they were part of its recipe."""
    return {**line, "recipe": {**line["recipe"], "attack": line["attack"], "setting": line["setting"]}}


def value_of(line: Mapping[str, Any], metric: str) -> float | None:
    """A figure of a result line; None where it has none."""
    found = line["memory"]["peak_bytes"] if metric == "memory" else line.get(metric, line["metrics"].get(metric))
    return None if found is None else float(found)


def shown_label(name: str, value: Any) -> str:
    """A value of a field as a person reads it."""
    if name == "method":
        return title_of(value)
    if name == "attack":
        return naming.title_of(value)
    if name == "setting":
        return SETTINGS.get(value, str(value))
    if name == "metric":
        return METRICS[value].title
    if isinstance(value, bool) or value is None:
        return f"{name}: {'none' if value is None else 'yes' if value else 'no'}"
    return str(value) if name == "set" else f"{name} {value}"


@dataclass(frozen=True)
class PoisoningTableSettings(Layout):
    """Methods by attack, a table for every data set and for what is known."""

    metric: str = "aupr"
    rows: str = "method"
    columns: str = "attack"
    by: str = "set,setting"
    subject: ClassVar[Subject] = Subject(
        METRICS,
        value_of,
        shown_label,
        in_order,
        orders={"set": list(TRAININGS), "setting": list(SETTINGS)},
        alike=frozenset({"method", "set", "attack", "setting", "seed", "metric"}),
        apart=("attack",),
        laid_out=laid_out,
    )
