"""Tables of results on poison: mean ± standard deviation over seeds, for Markdown, LaTeX or a program.

    sgoif bench table FILE.jsonl --metric aupr,success_after --rows method --columns attack --by set,setting

Methods that start from victims and methods that know nothing answer different questions, so by default each kind has a
table of its own. Best and ties are marked as in tables of `sgoif bench labels`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgoif.bench.journal import Line, first_line
from sgoif.bench.poisoning.attacks import naming
from sgoif.bench.poisoning.recipes import TRAININGS
from sgoif.bench.poisoning.registry import KNOWN, UNKNOWN, in_order, title_of
from sgoif.bench.tables.cells import Cell, Label, Table
from sgoif.bench.tables.formats import FORMATS, check_shown
from sgoif.bench.tables.lines import Metric, check_comparable, chosen, field_of, words
from sgoif.errors import SettingError

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
COMPARED = ("method", "set", "attack", "setting", "seed", "metric")
"""Fields that results of one recipe differ in."""


@dataclass(frozen=True)
class PoisoningTableSettings:
    """What stands where. Several fields, separated by commas, can share a place."""

    metric: str = "aupr"
    rows: str = "method"
    columns: str = "attack"
    by: str = "set,setting"
    format: str = "markdown"
    where: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_shown(self.metric, METRICS, self.format)
        if not words(self.rows) or not words(self.columns):
            raise SettingError("--rows and --columns each need a field, such as method and attack")
        if both := set(words(self.rows)) & set(words(self.columns)):
            raise SettingError(f"{', '.join(sorted(both))} cannot stand in --rows and in --columns at once")

    def places(self) -> tuple[list[str], list[str], list[str]]:
        """Fields of the rows, of the columns, and of the split into tables."""
        rows, columns, by = words(self.rows), words(self.columns), words(self.by)
        if len(words(self.metric)) > 1 and "metric" not in rows + columns + by:
            by.append("metric")
        return rows, columns, [name for name in by if name not in rows + columns]


def build(lines: Iterable[Line], settings: PoisoningTableSettings) -> list[Table]:
    """The tables that the settings ask for."""
    rows, columns, by = settings.places()
    kept = chosen(map(laid_out, lines), settings.where)
    if not set(rows) - set(COMPARED):
        _check(kept)
    parts: dict[Label, dict[tuple[Label, Label], Cell]] = {}
    for line in kept:
        for metric in words(settings.metric):
            table, row, column = (tuple(_value(line, metric, name) for name in place) for place in (by, rows, columns))
            value = value_of(line, metric)
            if value is not None:
                parts.setdefault(table, {}).setdefault((row, column), Cell(METRICS[metric])).add(line, value)
    if not parts:
        raise SettingError(f"none of these results has {settings.metric}")
    return [_table(label, parts[label], settings) for label in _sorted(by, parts)]


def laid_out(line: Line) -> Line:
    """A line whose attack and setting can be used to lay out a table, as if they were part of its recipe."""
    return {**line, "recipe": {**line["recipe"], "attack": line["attack"], "setting": line["setting"]}}


def _check(lines: Sequence[Line]) -> None:
    """Refuse to compare methods that were not trained by the same recipe under the same attack."""
    for attack in dict.fromkeys(line["attack"] for line in lines):
        check_comparable([line for line in lines if line["attack"] == attack])


def value_of(line: Mapping[str, Any], metric: str) -> float | None:
    """A figure of a result line; None where it has none."""
    found = line["memory"]["peak_bytes"] if metric == "memory" else line.get(metric, line["metrics"].get(metric))
    return None if found is None else float(found)


def _value(line: Line, metric: str, name: str) -> Any:
    return metric if name == "metric" else field_of(line, name)


def _table(label: Label, cells: dict[tuple[Label, Label], Cell], settings: PoisoningTableSettings) -> Table:
    rows, columns, by = settings.places()
    shown = [shown_label(name, value) for name, value in zip(by, label, strict=True)]
    if "metric" not in (*rows, *columns, *by):
        shown.append(METRICS[words(settings.metric)[0]].title)
    return Table(
        ", ".join(shown),
        _sorted(rows, (row for row, _ in cells)),
        _sorted(columns, (column for _, column in cells)),
        cells,
        row_fields=rows,
        column_fields=columns,
        shown=shown_label,
    )


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


def _sorted(fields: Sequence[str], labels: Iterable[Label]) -> list[Label]:
    """Methods, sets, settings and metrics as they are listed, numbers by size, others as they were found."""
    labels = list(dict.fromkeys(labels))
    listed: list[Sequence[Any]] = []
    for place, name in enumerate(fields):
        values = [label[place] for label in labels]
        known: dict[str, Sequence[Any]] = {
            "set": list(TRAININGS),
            "metric": list(METRICS),
            "setting": list(SETTINGS),
            "method": in_order(map(str, values)),
        }
        numbers = sorted({value for value in values if isinstance(value, int | float)})
        listed.append([*known.get(name, numbers), *values])
    return sorted(labels, key=lambda label: [order.index(value) for order, value in zip(listed, label, strict=True)])


def are_poisoning(paths: Sequence[Path]) -> bool:
    """Whether these files are results of `sgoif bench poisoning`."""
    kinds = {"attack" in first_line(path) for path in paths}
    if len(kinds) > 1:
        raise SettingError("results of `sgoif bench poisoning` and of other benchmarks do not go into one table")
    return True in kinds


def render(lines: Iterable[Line], settings: PoisoningTableSettings) -> str:
    """The tables as text."""
    return FORMATS[settings.format](build(lines, settings))
