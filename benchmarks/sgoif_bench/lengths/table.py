"""Results as Markdown: AUPR by the length of a run and the number of its anchors."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sgoif_bench.loops.table import compared, signed

Line = Mapping[str, Any]
HEAD = ("noise", "steps", "anchors", "label score", "influence", "best other", "ahead by")


def cells(lines: Iterable[Line]) -> list[tuple[tuple[str, int, int], list[Line]]]:
    """Runs by noise, steps and anchors, in order."""
    found: dict[tuple[str, int, int], list[Line]] = {}
    for line in lines:
        found.setdefault((line["noise"], line["steps"], line["anchors"]), []).append(line)
    return sorted(found.items())


def rows(lines: Iterable[Line]) -> list[list[str]]:
    """A row for every cell: means over seeds, in percent."""
    return [[*map(str, place), *figures(mine)] for place, mine in cells(lines)]


def figures(lines: Sequence[Line]) -> list[str]:
    """Label score, influence alone, the best signal that needs none, and how far the first is ahead of that."""
    cell, influence = compared(lines), 100 * statistics.mean(line["metrics"]["influence"] for line in lines)
    return [f"{cell.label_score:.1f}", f"{influence:.1f}", f"{cell.other:.1f} {cell.best}", signed(cell.ahead)]


def render(lines: Sequence[Line]) -> str:
    """The main table."""
    table = [HEAD, ["---", *["---:"] * (len(HEAD) - 1)], *rows(lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)
