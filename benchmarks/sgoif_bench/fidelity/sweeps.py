"""The best step of every sweep: what a rival's damping could have been, had its user known the answer.

A sweep is one method with several dampings (`registry`). Its best step is the one with the highest mean LDS over the
seeds that all of its steps have. It is chosen on the very figures that are then shown, which nobody could do without
hundreds of trainings; that favours the rival, and tables say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from sgoif_bench.fidelity.registry import METHODS
from sgoif_bench.journal import Line
from sgoif_bench.tables.cells import Cell, Label, Table

BEST = ", best"
"""Behind the name of a sweep: its best step."""
BySeed = Mapping[int, Mapping[str, Any]]
"""The lines of one method in one study."""


def best_step(found: Mapping[str, BySeed], sweep: str) -> str | None:
    """The name of the best step of a sweep among the methods of a study; None where fewer than two have figures."""
    steps = {name: lines for name, lines in found.items() if name in METHODS and METHODS[name].sweep == sweep and lines}
    seeds = set.intersection(*(set(lines) for lines in steps.values())) if len(steps) > 1 else set()
    if not seeds:
        return None
    return max(steps, key=lambda name: fmean(steps[name][seed]["metrics"]["lds"] for seed in seeds))


def title_of_best(name: str) -> str:
    """A row of a best step, such as `lissa-0.1, best`, as a table calls it."""
    return f"{METHODS[name.removesuffix(BEST)].title}: best of its sweep, chosen on these figures"


@dataclass
class SweptTable(Table):
    """A table whose last rows repeat the best step of every sweep; they are shown but not compared."""

    def __post_init__(self) -> None:
        self.repeated: set[Label] = set()
        fields = list(self.row_fields)
        if "method" not in fields or not self.rows:
            return
        place = fields.index("method")
        for sweep in dict.fromkeys(entry.sweep for entry in METHODS.values() if entry.sweep):
            for others in dict.fromkeys((*row[:place], *row[place + 1 :]) for row in list(self.rows)):
                self._repeat(sweep, place, others)

    def _repeat(self, sweep: str, place: int, others: Label) -> None:
        """One more row for a sweep, among rows that agree in everything but the method."""

        def label(name: str) -> Label:
            return (*others[:place], name, *others[place:])

        steps = {name: self._lines(label(name)) for name in METHODS if METHODS[name].sweep == sweep}
        step = best_step(steps, sweep)
        if step is None:
            return
        row = label(f"{step}{BEST}")
        self.rows.append(row)
        self.repeated.add(row)
        for column in self.columns:
            if (cell := self.cell(label(step), column)) is not None:
                self.cells[row, column] = cell

    def _lines(self, row: Label) -> dict[int, Line]:
        """The lines of a row by seed, whatever the column."""
        cells: list[Cell] = [cell for (name, _), cell in self.cells.items() if name == row]
        return {line["seed"]: line for cell in cells for line in cell.lines}

    def best(self, column: Label) -> tuple[set[Label], set[Label]]:
        rows = self.rows
        try:
            self.rows = [row for row in rows if row not in self.repeated]
            return super().best(column)
        finally:
            self.rows = rows
