"""Results as Markdown: for every loop and noise how the label score does beside the best signal without influence."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from sgoif_bench.loops.measures import OTHERS
from sgoif_bench.loops.registry import in_order, title_of

Line = Mapping[str, Any]
T = TypeVar("T", bound=Line)


class Cell(NamedTuple):
    """A loop under one noise: means over seeds, in percent."""

    label_score: float
    best: str
    other: float

    @property
    def ahead(self) -> float:
        """Points of the label score before the best other signal; negative: behind it."""
        return self.label_score - self.other


def compared(lines: Sequence[Line]) -> Cell:
    """Runs of one loop under one noise."""
    means = {name: 100 * statistics.mean(line["metrics"][name] for line in lines) for name in ("label_score", *OTHERS)}
    best = max(OTHERS, key=means.__getitem__)
    return Cell(means["label_score"], OTHERS[best], means[best])


def by_noise(lines: Iterable[Line]) -> dict[str, Cell]:
    """Runs of one loop, compared under each of its noises."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line["noise"], []).append(line)
    return {noise: compared(mine) for noise, mine in found.items()}


def by_loop(lines: Iterable[T]) -> dict[str, list[T]]:
    """Lines by loop, in the order of the registry, others behind."""
    found: dict[str, list[T]] = {}
    for line in lines:
        found.setdefault(line["loop"], []).append(line)
    return {name: found[name] for name in in_order(found)}


def rows(lines: Sequence[Line], noises: Sequence[str]) -> list[list[str]]:
    """A row for every loop."""
    found = []
    for name, mine in by_loop(lines).items():
        cells, shown = by_noise(mine), [title_of(name), one(mine, "recipe", "epochs"), one(mine, "efforts", "steps")]
        for noise in noises:
            shown += _compared(cells[noise]) if noise in cells else 3 * ["–"]
        found.append([*shown, identical(mine)])
    return found


def one(lines: Sequence[Line], part: str, name: str) -> str:
    """A number of every line, or the least and the largest where they differ."""
    values = sorted({line[part][name] for line in lines})
    return f"{values[0]}" if len(values) == 1 else f"{values[0]}–{values[-1]}"


def identical(lines: Sequence[Line]) -> str:
    """Whether all trainings were the same with the monitor, or how many of them."""
    same = sum(line["identical"] for line in lines)
    return "yes" if same == len(lines) else f"{same} of {len(lines)}"


def _compared(cell: Cell) -> list[str]:
    return [f"{cell.label_score:.1f}", f"{cell.other:.1f} {cell.best}", signed(cell.ahead)]


def signed(points: float) -> str:
    """A difference with its sign."""
    return f"{points:+.1f}".replace("-", "−")


def render(lines: Sequence[Line]) -> str:
    """The main table."""
    noises = list(dict.fromkeys(line["noise"] for line in lines))
    columns = [*("loop", "epochs", "steps"), *(c for noise in noises for c in (noise, "best other", "ahead by"))]
    head = [*columns, "identical"]
    table = [head, ["---", *["---:"] * (len(head) - 1)], *rows(lines, noises)]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)
