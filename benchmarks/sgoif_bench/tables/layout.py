"""Result lines laid out as tables: what stands in rows, in columns, and in tables of its own.

In every column the best mean is bold (in every row, where the methods stand in columns). A method is marked ≈ where it
cannot be told from the best: over the seeds that both have, the mean of the paired differences is at most one standard
error of that mean (standard deviation of the differences / √seeds). With fewer than two seeds in common nothing is
known about the spread, and nothing is marked.

The column `mean` is over the columns that every row has, seed by seed, so that a row does not profit from a setting it
was never tried on. The standard deviation is that of a sample (n − 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sgoif.errors import SettingError
from sgoif_bench.journal import Line
from sgoif_bench.tables.cells import Cell, Label, Table
from sgoif_bench.tables.formats import FORMATS, check_shown
from sgoif_bench.tables.lines import Metric, check_comparable, chosen, field_of, words


@dataclass(frozen=True)
class Subject:
    """What the tables of one benchmark are about."""

    metrics: Mapping[str, Metric]
    value_of: Callable[[Line, str], float | None]
    """A figure of a line; None where it has none."""
    shown: Callable[[str, Any], str]
    """A value of a field as a person reads it; nothing where it goes without saying."""
    in_order: Callable[[Iterable[str]], Sequence[str]]
    """Methods as they are listed."""
    orders: Mapping[str, Sequence[Any]]
    """Values of other fields as they are listed."""
    alike: frozenset[str] | None
    """Fields that comparable results differ in; where rows differ in others, or this is None, nothing is refused."""
    apart: tuple[str, ...] = ()
    """Fields beside data set and noise under which a method may have a recipe of its own."""
    laid_out: Callable[[Line], Line] = field(default=lambda line: line)
    """A line whose further fields can be used to lay out a table."""
    table: type[Table] = Table
    with_mean: bool = False


@dataclass(frozen=True)
class Layout:
    """What stands where. Several fields, separated by commas, can share a place."""

    metric: str
    rows: str
    columns: str
    by: str
    format: str = "markdown"
    where: tuple[str, ...] = ()
    subject: ClassVar[Subject]

    def __post_init__(self) -> None:
        check_shown(self.metric, self.subject.metrics, self.format)
        if not words(self.rows) or not words(self.columns):
            usual = type(self).__dataclass_fields__["columns"].default
            raise SettingError(f"--rows and --columns each need a field, such as method and {usual}")
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


def build(lines: Iterable[Line], layout: Layout) -> list[Table]:
    """The tables that the layout asks for."""
    subject = layout.subject
    rows, columns, by = layout.places()
    parts: dict[Label, dict[tuple[Label, Label], Cell]] = {}
    for line in chosen(map(subject.laid_out, lines), layout.where):
        for metric in words(layout.metric):
            table, row, column = (tuple(_field(line, metric, name) for name in place) for place in (by, rows, columns))
            value = subject.value_of(line, metric)
            if value is not None:
                parts.setdefault(table, {}).setdefault((row, column), Cell(subject.metrics[metric])).add(line, value)
    if not parts:
        raise SettingError(f"none of these results has {layout.metric}")
    tables = [_table(label, parts[label], layout) for label in _sorted(by, parts, subject)]
    if subject.alike is not None and not set(rows) - subject.alike:
        for found in tables:
            _check(found, subject)
    return tables


def render(lines: Iterable[Line], layout: Layout) -> str:
    """The tables as text."""
    return FORMATS[layout.format](build(lines, layout))


def _field(line: Line, metric: str, name: str) -> Any:
    return metric if name == "metric" else field_of(line, name)


def _table(label: Label, cells: dict[tuple[Label, Label], Cell], layout: Layout) -> Table:
    subject = layout.subject
    rows, columns, by = layout.places()
    shown = [subject.shown(name, value) for name, value in zip(by, label, strict=True)]
    if "metric" not in (*rows, *columns, *by):
        shown.append(subject.metrics[words(layout.metric)[0]].title)
    found = subject.table(
        ", ".join(filter(None, shown)),
        _sorted(rows, (row for row, _ in cells), subject),
        _sorted(columns, (column for _, column in cells), subject),
        cells,
        row_fields=rows,
        column_fields=columns,
        shown=subject.shown,
        is_turned=layout.is_turned,
    )
    if subject.with_mean and found.compares and "metric" not in columns and len(found.columns) > 1:
        found.add_mean()
    return found


def _check(table: Table, subject: Subject) -> None:
    """Refuse a column whose methods were not trained by the same recipe."""
    for column in (column for column in table.columns if column is not table.average):
        groups: dict[Label, list[Line]] = {}
        for line in table.lines(column):
            groups.setdefault(tuple(field_of(line, name) for name in subject.apart), []).append(line)
        for lines in groups.values():
            check_comparable(lines)


def _sorted(fields: Sequence[str], labels: Iterable[Label], subject: Subject) -> list[Label]:
    """Methods, metrics and what else has an order as they are listed, numbers by size, the rest as it was found."""
    labels = list(dict.fromkeys(labels))
    listed: list[Sequence[Any]] = []
    for place, name in enumerate(fields):
        values = [label[place] for label in labels]
        known = {**subject.orders, "metric": list(subject.metrics), "method": subject.in_order(map(str, values))}
        numbers = sorted({value for value in values if isinstance(value, int | float)})
        listed.append([*known.get(name, [None, *numbers]), *values])
    return sorted(labels, key=lambda label: [order.index(value) for order, value in zip(listed, label, strict=True)])
