"""Tables as text: Markdown for a person, LaTeX for a paper, JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sgoif.errors import SettingError
from sgoif_bench.tables.cells import Label, Table
from sgoif_bench.tables.lines import words


@dataclass(frozen=True)
class Style:
    """How a format writes what the tables share."""

    text: Callable[[str], str]
    bold: Callable[[str], str]
    plus_minus: str
    tied: str
    shared: str
    missing: str


def _shown_fields(table: Table) -> tuple[Sequence[str], Sequence[str]]:
    """The fields of the rows and of the columns that a person sees."""
    rows, columns = table.row_fields, table.column_fields
    return (columns, rows) if table.is_turned else (rows, columns)


def _grid(table: Table, style: Style) -> list[list[str]]:
    """Every cell as text, headings first."""
    names = [style.text(_heading(table, column)) for column in table.columns]
    grid = [[style.text(" / ".join(_shown_fields(table)[0])), *names, "seeds"]]
    marks = {column: table.best(column) for column in table.columns}
    for row in table.rows:
        shown = [_cell(table, row, column, marks[column], style) for column in table.columns]
        grid.append([style.text(_label(table, table.row_fields, row)), *shown, style.text(table.seeds(row))])
    return [list(row) for row in zip(*grid, strict=True)] if table.is_turned else grid


def _heading(table: Table, column: Label) -> str:
    if column is table.average:
        return str(column[0])
    return _label(table, table.column_fields, column)


def _label(table: Table, fields: Sequence[str], label: Label) -> str:
    return ", ".join(filter(None, map(table.shown, fields, label)))


def _cell(table: Table, row: Label, column: Label, marks: tuple[set[Label], set[Label]], style: Style) -> str:
    cell = table.cell(row, column)
    if cell is None:
        return style.missing
    metric = cell.metric
    text = f"{metric.scale * cell.mean:.{metric.digits}f}"
    if cell.deviation is not None:
        text += f"{style.plus_minus}{metric.scale * cell.deviation:.{metric.digits}f}"
    best, tied = marks
    text = style.bold(text) if row in best else text + style.tied if row in tied else text
    return text + (style.shared if metric.is_cost and cell.is_shared else "")


NOTES = {
    "seeds": "Mean ± standard deviation over seeds.",
    "best": "Bold: best.",
    "tied": "≈: within one standard error of the best (paired over seeds).",
    "shared": "†: of a training that several methods share.",
    "mean": "The mean is over the settings that all compared have.",
}


def _notes(table: Table) -> list[str]:
    """What has to be said about the marks that occur."""
    marks = [table.best(column) for column in table.columns]
    cells = list(table.cells.values())
    occurs = {
        "seeds": any(cell.deviation is not None for cell in cells),
        "best": any(best for best, _ in marks),
        "tied": any(tied for _, tied in marks),
        "shared": any(cell.metric.is_cost and cell.is_shared for cell in cells),
        "mean": table.average is not None,
    }
    return [NOTES[name] for name, does in occurs.items() if does]


def escape_markdown(text: str) -> str:
    """Text that a Markdown table shows as it is."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|&~$#" else letter for letter in " ".join(text.split()))


_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", '"': "''",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "±": r"$\pm$", "≈": r"$\approx$", "τ": r"$\tau$", "–": "--", "†": r"\dag{}", "×": r"$\times$",
}  # fmt: skip


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it is."""
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


MARKDOWN = Style(escape_markdown, lambda text: f"**{text}**", " ± ", " ≈", " †", "–")
LATEX = Style(escape_latex, lambda text: f"\\textbf{{{text}}}", r"\,$\pm$\,", r"\,$\approx$", r"\,\dag{}", "--")


def _markdown(table: Table) -> str:
    heading, *body = _grid(table, MARKDOWN)
    ruler = [":--", *["--:"] * (len(heading) - 1)]
    rows = [f"| {' | '.join(row)} |" for row in (heading, ruler, *body)]
    return "\n".join([f"**{escape_markdown(table.title)}**", "", *rows, "", " ".join(_notes(table))]).rstrip()


def _latex(table: Table) -> str:
    """A table for the package booktabs."""
    heading, *body = _grid(table, LATEX)
    caption = ". ".join([table.title, " ".join(_notes(table))]).rstrip(". ") + "."
    rows = [" & ".join(row) + r" \\" for row in body]
    return "\n".join(
        [
            *(r"\begin{table}", r"\centering", f"\\caption{{{escape_latex(caption)}}}"),
            f"\\begin{{tabular}}{{l{'r' * (len(heading) - 1)}}}",
            *(r"\toprule", " & ".join(heading) + r" \\", r"\midrule", *rows, r"\bottomrule"),
            *(r"\end{tabular}", r"\end{table}"),
        ]
    )


def _facts(table: Table) -> dict[str, Any]:
    cells: list[dict[str, Any]] = []
    for column in table.columns:
        best, tied = table.best(column)
        fields = ["over"] if column is table.average else table.column_fields
        for row in table.rows:
            cell = table.cell(row, column)
            place = {**dict(zip(table.row_fields, row, strict=True)), **dict(zip(fields, column, strict=True))}
            if cell is not None:
                facts = {"mean": cell.mean, "standard_deviation": cell.deviation, "seeds": sorted(cell.values)}
                marks = {"best": row in best, "tied": row in tied, "shared": cell.is_shared}
                cells.append({**place, **facts, **marks})
    rows, columns = _shown_fields(table)
    return {"title": table.title, "rows": rows, "columns": columns, "cells": cells}


def to_markdown(tables: Iterable[Table]) -> str:
    """Tables for the README, with a line below each that explains its marks."""
    return "\n\n".join(map(_markdown, tables))


def to_latex(tables: Iterable[Table]) -> str:
    """Tables for the package booktabs."""
    return "\n\n".join(map(_latex, tables))


def to_json(tables: Iterable[Table]) -> str:
    """One object that holds all tables, cell by cell."""
    return json.dumps({"tables": [_facts(table) for table in tables]}, allow_nan=False)


FORMATS: Mapping[str, Callable[[Iterable[Table]], str]] = {
    "markdown": to_markdown,
    "latex": to_latex,
    "json": to_json,
}


def check_shown(metric: str, known: Iterable[str], layout: str) -> None:
    """Refuse metrics, separated by commas, or a format that there are not."""
    names = list(known)
    unknown = [name for name in words(metric) if name not in names]
    if unknown or not words(metric):
        raise SettingError(f"there is no metric {', '.join(unknown)}; choose from {', '.join(names)}")
    if layout not in FORMATS:
        raise SettingError(f"there is no format {layout!r}; choose from {', '.join(FORMATS)}")
