"""Cells of the tables: means, deviations, the best in bold."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"
Line = dict[str, Any]


@dataclass(frozen=True)
class Runs:
    """Some seeds of one data set, and whether choices were made with them in view."""

    title: str
    file: str
    seeds: Sequence[int]
    selection: str


def read_lines(name: str) -> list[Line]:
    """The lines of a result file."""
    with (RESULTS / name).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_result(name: str) -> dict[str, Any]:
    """A result file that is one object."""
    found: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown, the first column to the left and the others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def number(values: Sequence[float], spread: bool = True, digits: int = 1) -> str:
    """Mean, and deviation where there are several."""
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if spread and len(values) > 1 else mean


def marked(cells: Sequence[Sequence[float]], digits: int = 1) -> list[str]:
    """Cells that are compared, the best in bold; those that print the same mean are as good."""
    means = [round(statistics.mean(values), digits) if values else None for values in cells]
    best = max((mean for mean in means if mean is not None), default=None)
    return [
        f"**{number(values, digits=digits)}**" if values and mean == best else number(values, digits=digits)
        for mean, values in zip(means, cells, strict=True)
    ]
