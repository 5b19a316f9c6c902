"""Results as Markdown: what share of what was planted was found, what share of findings is right, false alarms."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sgoif_bench.findings.kinds import KINDS
from sgoif_bench.findings.pictures import NAMES

Line = Mapping[str, Any]


def sets_of(lines: Iterable[Line]) -> list[str]:
    """The sets that there are lines of, in order."""
    return sorted({line["set"] for line in lines}, key=NAMES.index)


def kinds_of(lines: Iterable[Line]) -> list[str]:
    """The kinds that there are lines of, in order."""
    return sorted({line["kind"] for line in lines}, key=KINDS.index)


def share(lines: Sequence[Line], metric: str) -> str:
    """Mean over seeds in percent."""
    values = [line["metrics"][metric] for line in lines if line["metrics"][metric] is not None]
    return f"{100 * statistics.mean(values):.0f}" if values else "–"


def alarms(lines: Sequence[Line], severe: Sequence[str] = ("error", "warning")) -> float:
    """Findings of these severities in each thousand clean images."""
    number: int = sum(line["clean_severity"][severity] for line in lines for severity in severe)
    images: int = sum(line["clean_images"] for line in lines)
    return 1000 * number / images


def render(lines: Sequence[Line]) -> str:
    """Recall / precision in percent, and errors and warnings in 1,000 clean images, of every kind and set."""
    sets = sets_of(lines)
    table = [("kind", *sets), ("---", *("---:" for _ in sets))]
    for kind in kinds_of(lines):
        cells = []
        for name in sets:
            some = [line for line in lines if (line["kind"], line["set"]) == (kind, name)]
            found = f"{share(some, 'recall')} / {share(some, 'precision')} / {alarms(some):.2f}" if some else "–"
            cells.append(found)
        table.append((kind, *cells))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table)
