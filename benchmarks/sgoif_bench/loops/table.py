"""Results as Markdown: for every loop and noise how the label score does beside the best signal without influence."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sgoif_bench.loops.measures import OTHERS
from sgoif_bench.loops.registry import LOOPS, title_of

Line = Mapping[str, Any]


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


def noises_of(lines: Iterable[Line]) -> list[str]:
    """The noises in the order in which they come first."""
    return list(dict.fromkeys(line["noise"] for line in lines))


def by_loop(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Lines by loop, in the order of the registry, others behind."""
    found: dict[str, list[Line]] = {}
    listed = list(LOOPS)
    for line in sorted(lines, key=lambda line: listed.index(line["loop"]) if line["loop"] in LOOPS else len(listed)):
        found.setdefault(line["loop"], []).append(line)
    return found


def head(noises: Sequence[str]) -> list[str]:
    """The columns of the table."""
    compared = [column for noise in noises for column in (noise, "best other", "ahead")]
    return ["loop", "epochs", "steps", *compared, "identical"]


def rows(lines: Sequence[Line]) -> list[list[str]]:
    """A row for every loop."""
    noises, found = noises_of(lines), []
    for name, mine in by_loop(lines).items():
        cells = [cell for noise in noises for cell in _shown([line for line in mine if line["noise"] == noise])]
        same = sum(line["identical"] for line in mine)
        identical = "yes" if same == len(mine) else f"{same} of {len(mine)}"
        found.append(
            [title_of(name), _one(mine, "recipe", "epochs"), _one(mine, "efforts", "steps"), *cells, identical]
        )
    return found


def _one(lines: Sequence[Line], part: str, name: str) -> str:
    """A number of every line, or the least and the largest where they differ."""
    values = sorted({line[part][name] for line in lines})
    return f"{values[0]}" if len(values) == 1 else f"{values[0]}–{values[-1]}"


def _shown(lines: Sequence[Line]) -> list[str]:
    if not lines:
        return 3 * ["–"]
    cell = compared(lines)
    return [f"{cell.label_score:.1f}", f"{cell.other:.1f} {cell.best}", signed(cell.ahead)]


def signed(points: float) -> str:
    """A difference with its sign."""
    return f"{points:+.1f}".replace("-", "−")


def render(lines: Sequence[Line]) -> str:
    """The main table."""
    columns = head(noises_of(lines))
    table = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows(lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)
