"""The tables of the page about loops of others, and about runs of different lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pages.cells import Line, Runs, read_lines, table
from sgoif_bench.lengths.table import cells
from sgoif_bench.loops.table import by_loop, by_noise, compared, identical, one, signed

PAGE = "loops.md"
LOOPS = Runs("digits", "loops.jsonl", (0, 1, 2), "dev")
LENGTHS = Runs("MNIST", "lengths.jsonl", (0, 1, 2), "held-out")
SHOWN = 6
"""Loops with a row of their own."""
NOISES = {"symmetric-20": "symmetric", "class-dependent-20": "class-dependent"}


def lines_of(runs: Runs) -> list[Line]:
    """The lines of these seeds."""
    return [line for line in read_lines(runs.file) if line["seed"] in runs.seeds]


def smallest_leads() -> str:
    """A row for each of the loops with the smallest lead, and one for the least figures of the others."""
    found = []
    for name, lines in by_loop(lines_of(LOOPS)).items():
        by_name = by_noise(lines)
        leads = [f"{by_name[noise].label_score:.1f} ({signed(by_name[noise].ahead)})" for noise in NOISES]
        smallest = min(by_name[noise].ahead for noise in NOISES)
        found.append((smallest, [f"`{name}`", one(lines, "efforts", "steps"), *leads], by_name))
    found.sort(key=lambda row: row[0])
    rows, others = [row for _, row, _ in found[:SHOWN]], [by_name for _, _, by_name in found[SHOWN:]]
    if others:
        pairs = [[(cells[noise].label_score, cells[noise].ahead) for cells in others] for noise in NOISES]
        least = [tuple(map(min, zip(*some, strict=True))) for some in pairs]
        rows.append([f"{len(others)} others, least", "", *(f"{score:.1f} ({signed(ahead)})" for score, ahead in least)])
    return table(("loop", "steps", *NOISES.values()), rows)


def unchanged() -> str:
    """In how many pairs of trainings the weights are the same."""
    lines = lines_of(LOOPS)
    same = len(lines) if identical(lines) == "yes" else identical(lines).split()[0]
    return f"Identical weights: {same} of {len(lines)} pairs of trainings.\n"


def by_length() -> str:
    """A row for every noise and length, a column for every number of anchors."""
    found = dict(cells(lines_of(LENGTHS)))
    anchors = sorted({count for _, _, count in found})
    lengths = sorted({steps for _, steps, _ in found})
    head = ("noise", "steps", *(f"{count:,} anchors" for count in anchors))
    rows = [
        [title, f"{steps:,}", *(figures(found[noise, steps, count]) for count in anchors)]
        for noise, title in NOISES.items()
        for steps in lengths
    ]
    return table(head, rows)


def figures(lines: Sequence[Mapping[str, Any]]) -> str:
    """Label score, influence alone, and the best signal that needs none."""
    cell = compared(lines)
    return f"{cell.label_score:.1f}/{mean(line['metrics']['influence'] for line in lines):.1f}/{cell.other:.1f}"


def mean(shares: Iterable[float]) -> float:
    """In percent."""
    values = list(shares)
    return 100 * sum(values) / len(values)


TABLES: dict[str, Callable[[], str]] = {"loops": smallest_leads, "identical": unchanged, "lengths": by_length}
