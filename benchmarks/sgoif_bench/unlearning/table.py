"""Results as Markdown: for every data set how well changes are predicted, and what a removal achieves and costs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]
TITLES = {
    "first_order": "influence, added up",
    "influence": "influence step",
    "newton": "one Newton step",
    "removal": "removal as shipped",
}
WHAT = {"single": "single", "group": "group of 10 to 50"}


def figure(values: Iterable[float | None], digits: int = 3, scale: float = 1.0) -> str:
    """Mean over seeds with its deviation."""
    found = [scale * value for value in values if value is not None]
    if not found:
        return "–"
    mean = f"{statistics.mean(found):.{digits}f}"
    return f"{mean} ± {statistics.stdev(found):.{digits}f}" if len(found) > 1 else mean


def of_sets(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Lines by data set, each in the order of seeds."""
    found: dict[str, list[Line]] = {}
    for line in sorted(lines, key=lambda line: line["seed"]):
        found.setdefault(line["set"], []).append(line)
    return found


def over(lines: Sequence[Line], *path: str) -> list[float | None]:
    """One figure of every line."""
    found = []
    for line in lines:
        value: Any = line["metrics"]
        for name in path:
            value = value[name]
        found.append(value)
    return found


def prediction_rows(name: str, lines: Sequence[Line]) -> list[list[str]]:
    """Rank correlation, share of the way and certificate of every way to predict."""
    rows = []
    for what, shown in WHAT.items():
        for method, title in TITLES.items():
            cells = [figure(over(lines, what, measure, method)) for measure in ("spearman", "pearson")]
            if method == "first_order":  # it predicts losses, not heads
                rows.append([name, shown, title, *cells, *["–"] * 3])
                continue
            closed = [figure(over(lines, what, "closed", method, part), 1, 100) for part in ("mean", "least")]
            ratio = figure(over(lines, what, "certificate", method, "median_ratio"), 1)
            rows.append([name, shown, title, *cells, *closed, ratio])
    return rows


PREDICTION_HEAD = (
    "data set",
    "deletion",
    "prediction",
    "Spearman",
    "Pearson",
    "way closed, mean %",
    "least %",
    "certificate / distance",
)


def render(lines: Iterable[Line]) -> str:
    """The main table."""
    rows = [row for name, found in of_sets(lines).items() for row in prediction_rows(name, found)]
    table = [list(PREDICTION_HEAD), ["---", "---", "---", *["---:"] * (len(PREDICTION_HEAD) - 3)], *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)
