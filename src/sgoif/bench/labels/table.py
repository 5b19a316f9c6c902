"""Tables of result files: mean ± standard deviation over seeds, for Markdown, LaTeX or a program.

    sgoif bench table FILE.jsonl --metric aupr --rows method --columns noise --by set

In every column the best mean is bold (in every row, where the methods stand in columns). A method is marked ≈ where it
cannot be told from the best: over the seeds that both have, the mean of the paired differences is at most one standard
error of that mean (standard deviation of the differences / √seeds). With fewer than two seeds in common nothing is
known about the spread, and nothing is marked.

The column `mean` is over the columns that every row has, seed by seed, so that a row does not profit from a setting it
was never tried on. The standard deviation is that of a sample (n − 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sgoif.bench.journal import Line
from sgoif.bench.labels.lines import METRICS, shown_label, value_of
from sgoif.bench.labels.recipes import TRAININGS
from sgoif.bench.labels.registry import in_order
from sgoif.bench.tables.cells import Cell, Label, Table
from sgoif.bench.tables.formats import FORMATS, check_shown
from sgoif.bench.tables.lines import check_comparable, chosen, field_of, words
from sgoif.errors import SettingError


@dataclass(frozen=True)
class TableSettings:
    """What stands where. Several fields, separated by commas, can share a place."""

    metric: str = "aupr"
    rows: str = "method"
    columns: str = "noise"
    by: str = "set"
    format: str = "markdown"
    where: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_shown(self.metric, METRICS, self.format)
        if not words(self.rows) or not words(self.columns):
            raise SettingError("--rows and --columns each need a field, such as method and noise")
        if both := set(words(self.rows)) & set(words(self.columns)):
            raise SettingError(f"{', '.join(sorted(both))} cannot stand in --rows and in --columns at once")

    @property
    def is_turned(self) -> bool:
        """Whether methods, which are what is compared, stand in columns."""
        return "method" in words(self.columns)

    def places(self) -> tuple[list[str], list[str], list[str]]:
        """Fields of what is compared, of what it is compared in, and of the split into tables."""
        rows, columns, by = words(self.rows), words(self.columns), words(self.by)
        if len(words(self.metric)) > 1 and "metric" not in rows + columns + by:
            by.append("metric")
        by = [name for name in by if name not in rows + columns]
        return (columns, rows, by) if self.is_turned else (rows, columns, by)


def build(lines: Iterable[Line], settings: TableSettings) -> list[Table]:
    """The tables that the settings ask for."""
    rows, columns, by = settings.places()
    parts: dict[Label, dict[tuple[Label, Label], Cell]] = {}
    for line in chosen(lines, settings.where):
        for metric in words(settings.metric):
            table, row, column = (tuple(_label(line, metric, name) for name in place) for place in (by, rows, columns))
            value = value_of(line, metric)
            if value is not None:
                parts.setdefault(table, {}).setdefault((row, column), Cell(METRICS[metric])).add(line, value)
    if not parts:
        raise SettingError(f"none of these results has {settings.metric}")
    tables = [_table(label, parts[label], settings) for label in _sorted(by, parts)]
    if not set(rows) - {"method", "set", "noise", "seed", "shared", "metric"}:
        for found in tables:
            for column in (column for column in found.columns if column is not found.average):
                check_comparable(found.lines(column))
    return tables


def _label(line: Line, metric: str, name: str) -> Any:
    return metric if name == "metric" else field_of(line, name)


def _table(label: Label, cells: dict[tuple[Label, Label], Cell], settings: TableSettings) -> Table:
    rows, columns, by = settings.places()
    shown = [shown_label(name, value) for name, value in zip(by, label, strict=True)]
    if "metric" not in (*rows, *columns, *by):
        shown.append(METRICS[words(settings.metric)[0]].title)
    found = Table(
        ", ".join(shown),
        _sorted(rows, (row for row, _ in cells)),
        _sorted(columns, (column for _, column in cells)),
        cells,
        row_fields=rows,
        column_fields=columns,
        shown=shown_label,
        is_turned=settings.is_turned,
    )
    if found.compares and "metric" not in columns and len(found.columns) > 1:
        found.add_mean()
    return found


def _sorted(fields: Sequence[str], labels: Iterable[Label]) -> list[Label]:
    """Methods, data sets and metrics as they are listed, numbers by size, others as they were found."""
    labels = list(dict.fromkeys(labels))
    listed: list[Sequence[Any]] = []
    for place, name in enumerate(fields):
        values = [label[place] for label in labels]
        known = {"set": list(TRAININGS), "metric": list(METRICS), "method": in_order(map(str, values))}
        numbers = sorted({value for value in values if isinstance(value, int | float)})
        listed.append([*known.get(name, numbers), *values])
    return sorted(labels, key=lambda label: [order.index(value) for order, value in zip(listed, label, strict=True)])


def render(lines: Iterable[Line], settings: TableSettings) -> str:
    """The tables as text."""
    return FORMATS[settings.format](build(lines, settings))
