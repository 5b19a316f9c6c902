"""Means, spreads and ties: the values of a table by seed, and which rows are best.

The rules stand in the description of `sgoif-bench table`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from sgoif_bench.journal import Line
from sgoif_bench.tables.lines import Metric, refuse_same_place

Label = tuple[Any, ...]


@dataclass
class Cell:
    """The values of one place by seed."""

    metric: Metric
    values: dict[int, float] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return fmean(self.values.values())

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds; None for a single one."""
        return stdev(self.values.values()) if len(self.values) > 1 else None

    @property
    def is_shared(self) -> bool:
        """Whether a training served several methods."""
        return any(line["shared"] for line in self.lines)

    def add(self, line: Line, value: float) -> None:
        seed = line["seed"]
        if seed in self.values:
            refuse_same_place(self.lines[list(self.values).index(seed)], line)
        self.values[seed] = value
        self.lines.append(line)


@dataclass
class Table:
    """Rows that are compared, column by column; where methods stand in columns, it is turned when it is shown."""

    title: str
    rows: list[Label]
    columns: list[Label]
    cells: dict[tuple[Label, Label], Cell]
    row_fields: Sequence[str]
    """What the values in the label of a row are, such as method."""
    column_fields: Sequence[str]
    shown: Callable[[str, Any], str]
    """A value of a field as a person reads it."""
    is_turned: bool = False
    """Whether rows are shown as columns."""
    average: Label | None = None
    """The column that holds the mean over others."""

    @property
    def compares(self) -> bool:
        """Whether the rows of a column can be compared: not where they are different metrics."""
        return "metric" not in self.row_fields

    def cell(self, row: Label, column: Label) -> Cell | None:
        return self.cells.get((row, column))

    def lines(self, column: Label) -> list[Line]:
        """The results that a column is made of."""
        return [line for row in self.rows if (cell := self.cell(row, column)) is not None for line in cell.lines]

    def common(self) -> list[Label]:
        """The columns that every row has."""
        return [column for column in self.columns if all((row, column) in self.cells for row in self.rows)]

    def best(self, column: Label) -> tuple[set[Label], set[Label]]:
        """The rows with the best mean of a column, and those that cannot be told from the first of them."""
        here = {row: cell for row in self.rows if (cell := self.cell(row, column)) is not None}
        if not self.compares or len(here) < 2:
            return set(), set()
        sign = 1 if next(iter(here.values())).metric.higher_is_better else -1
        top = max(sign * cell.mean for cell in here.values())
        first = [row for row, cell in here.items() if sign * cell.mean == top]
        tied = {row for row, cell in here.items() if row not in first and within_error(here[first[0]], cell, sign)}
        return set(first), tied

    def seeds(self, row: Label) -> str:
        """How many seeds the cells of a row have."""
        counts = sorted({len(cell.values) for (name, _), cell in self.cells.items() if name == row})
        return str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"

    def add_mean(self) -> None:
        """A further column: per seed the mean over the columns that all rows have."""
        common = self.common()
        label: Label = ("mean" if len(common) == len(self.columns) else f"mean of {len(common)}",)
        for row in self.rows:
            here = [self.cells[row, column] for column in common]
            seeds = [seed for seed in here[0].values if all(seed in cell.values for cell in here)] if here else []
            if seeds:
                values = {seed: fmean(cell.values[seed] for cell in here) for seed in seeds}
                self.cells[row, label] = Cell(here[0].metric, values, [line for cell in here for line in cell.lines])
        self.columns.append(label)
        self.average = label


def within_error(best: Cell, other: Cell, sign: int = 1) -> bool:
    """Whether the paired difference over common seeds is at most one standard error from zero."""
    common = [seed for seed in best.values if seed in other.values]
    if len(common) < 2:
        return False
    differences = [sign * (best.values[seed] - other.values[seed]) for seed in common]
    return fmean(differences) <= stdev(differences) / math.sqrt(len(common))
