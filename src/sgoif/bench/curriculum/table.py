"""Tables of what training despite wrong labels comes to: mean ± standard deviation over seeds.

    sgoif bench table FILE.jsonl --metric accuracy --rows method --columns noise --by set,tail

Best and ties are marked as in tables of `sgoif bench labels`. The oracle stands in the table, but it is no method: it
is never the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgoif.bench.curriculum.recipes import TRAININGS
from sgoif.bench.curriculum.registry import METHODS, in_order, title_of
from sgoif.bench.journal import Line, first_line
from sgoif.bench.tables.cells import Cell, Label, Table
from sgoif.bench.tables.formats import FORMATS, check_shown
from sgoif.bench.tables.lines import Metric, check_comparable, chosen, field_of, words
from sgoif.errors import SettingError

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


@dataclass(frozen=True)
class CurriculumTableSettings:
    """What stands where. Several fields, separated by commas, can share a place."""

    metric: str = "accuracy"
    rows: str = "method"
    columns: str = "noise"
    by: str = "set,tail"
    format: str = "markdown"
    where: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_shown(self.metric, METRICS, self.format)
        if not words(self.rows) or not words(self.columns):
            raise SettingError("--rows and --columns each need a field, such as method and noise")
        if both := set(words(self.rows)) & set(words(self.columns)):
            raise SettingError(f"{', '.join(sorted(both))} cannot stand in --rows and in --columns at once")


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


def build(lines: Iterable[Line], settings: CurriculumTableSettings) -> list[Table]:
    """The tables that the settings ask for: one for each metric and each value of `by`."""
    rows, columns = words(settings.rows), words(settings.columns)
    by = [name for name in words(settings.by) if name not in rows + columns]
    parts: dict[Label, dict[tuple[Label, Label], Cell]] = {}
    for metric in words(settings.metric):
        for line in chosen(lines, settings.where):
            table, row, column = (tuple(field_of(line, name) for name in place) for place in (by, rows, columns))
            value = value_of(line, metric)
            if value is not None:
                cells = parts.setdefault((*table, metric), {})
                cells.setdefault((row, column), Cell(METRICS[metric])).add(line, value)
    if not parts:
        raise SettingError(f"none of these results has {settings.metric}")
    tables = [_table(label, parts[label], by, settings) for label in _sorted([*by, "metric"], parts)]
    if not set(rows) - {"method", "set", "noise", "seed", "tail"}:
        for found in tables:
            for column in found.columns:
                check_comparable(found.lines(column))
    return tables


def _table(
    label: Label, cells: dict[tuple[Label, Label], Cell], by: Sequence[str], settings: CurriculumTableSettings
) -> Table:
    rows, columns = words(settings.rows), words(settings.columns)
    names = [*by, "metric"]
    return Compared(
        ", ".join(filter(None, (shown_label(name, value) for name, value in zip(names, label, strict=True)))),
        _sorted(rows, (row for row, _ in cells)),
        _sorted(columns, (column for _, column in cells)),
        cells,
        row_fields=rows,
        column_fields=columns,
        shown=shown_label,
    )


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


def _sorted(fields: Sequence[str], labels: Iterable[Label]) -> list[Label]:
    """Methods, data sets and metrics as they are listed, numbers by size, others as they were found."""
    labels = list(dict.fromkeys(labels))
    listed: list[Sequence[Any]] = []
    for place, name in enumerate(fields):
        values = [label[place] for label in labels]
        known = {"set": list(TRAININGS), "metric": list(METRICS), "method": in_order(map(str, values))}
        numbers = sorted({value for value in values if isinstance(value, int | float)})
        listed.append([*known.get(name, [None, *numbers]), *values])
    return sorted(labels, key=lambda label: [order.index(value) for order, value in zip(listed, label, strict=True)])


def are_curriculum(paths: Sequence[Path]) -> bool:
    """Whether these files are results of `sgoif bench curriculum`."""
    kinds = {"wrong_weight" in first_line(path).get("metrics", {}) for path in paths}
    if len(kinds) > 1:
        raise SettingError("results of `sgoif bench curriculum` do not go into one table with those of other commands")
    return True in kinds


def render(lines: Iterable[Line], settings: CurriculumTableSettings) -> str:
    """The tables as text."""
    return FORMATS[settings.format](build(list(lines), settings))
