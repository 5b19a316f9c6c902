"""The table of the page about loops of others: the noise under which each does worst, and the other."""

from __future__ import annotations

from collections.abc import Callable

from pages.cells import Line, Runs, read_lines, table
from sgoif_bench.loops.table import by_loop, by_noise, identical, one, signed

PAGE = "loops.md"
RUNS = Runs("digits", "loops.jsonl", (0, 1, 2), "dev")
HEAD = (
    "loop",
    "epochs",
    "steps",
    "label score",
    "best other",
    "ahead by",
    "other noise",
    "identical",
    "selection",
)


def row(name: str, lines: list[Line]) -> tuple[float, list[str]]:
    """How far a loop is ahead where it is least, and what the page says of it."""
    cells = sorted(by_noise(lines).values(), key=lambda cell: cell.ahead)
    worst, *rest = cells
    return worst.ahead, [
        f"`{name}`",
        one(lines, "recipe", "epochs"),
        one(lines, "efforts", "steps"),
        f"{worst.label_score:.1f}",
        f"{worst.other:.1f} {worst.best}",
        signed(worst.ahead),
        ", ".join(signed(cell.ahead) for cell in rest) or "–",
        identical(lines),
        RUNS.selection,
    ]


def smallest_leads() -> str:
    """A row for every loop, those with the smallest lead first."""
    lines = [line for line in read_lines(RUNS.file) if line["seed"] in RUNS.seeds]
    rows = sorted((row(name, mine) for name, mine in by_loop(lines).items()), key=lambda found: found[0])
    return table(HEAD, [cells for _, cells in rows])


TABLES: dict[str, Callable[[], str]] = {"loops": smallest_leads}
