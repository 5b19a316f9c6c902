"""The table of the page about deletions: what each way of predicting them is worth, and what is certified."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pages.cells import Line, Runs, number, read_lines, table
from sgoif_bench.unlearning.table import WHAT, over

PAGE = "unlearning.md"


RUNS = (
    Runs("digits", "unlearning-digits.jsonl", (0, 1, 2), "dev"),
    Runs("MNIST", "unlearning-mnist.jsonl", (0,), "dev"),
    Runs("MNIST", "unlearning-mnist.jsonl", (1, 2), "held-out"),
    Runs("CIFAR-10", "unlearning-cifar10.jsonl", (0,), "held-out"),
)
HEAD = (
    "data (seeds)",
    "deleted",
    "influence, Spearman",
    "influence step, %",
    "Newton step, %",
    "removal, %",
    "certificates broken",
    "test interval, %",
    "ms (retraining)",
    "selection",
)


def cell(values: Sequence[float | None], digits: int, scale: float = 1.0) -> str:
    """Mean over seeds."""
    return number([scale * value for value in values if value is not None], spread=False, digits=digits)


def row(runs: Runs, what: str, lines: Sequence[Line]) -> list[str]:
    """The figures of one kind of deletion."""
    closed = [
        " / ".join(cell(over(lines, what, "closed", method, part), 1, 100) for part in ("mean", "least"))
        for method in ("influence", "newton", "removal")
    ]
    broken = sum(int(value or 0) for value in over(lines, what, "certificate", "removal", "broken"))
    timed = [line for line in lines if line["machine"]["device_type"] == "cpu"]
    own, retraining = (cell(over(timed, what, "seconds", part), 0, 1000) for part in ("removal", "retraining"))
    return [
        f"{runs.title} ({len(lines)})",
        WHAT[what],
        cell(over(lines, what, "spearman", "first_order"), 3),
        *closed,
        str(broken),
        cell(over(lines, what, "interval", "removal", "population_coverage"), 1, 100),
        f"{own} ({retraining})" if timed else "–",
        runs.selection,
    ]


def summary() -> str:
    """Single examples and groups, on every data set."""
    rows = []
    for runs in RUNS:
        lines = [line for line in read_lines(runs.file) if line["seed"] in runs.seeds]
        rows += [row(runs, what, lines) for what in WHAT]
    return table(HEAD, rows)


TABLES: dict[str, Callable[[], str]] = {"unlearning": summary}
