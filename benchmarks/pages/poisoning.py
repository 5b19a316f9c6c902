"""The table of the page about poisoned training examples: a row for every data set and attack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean

from pages.cells import Line, Runs, number, read_lines, table
from sgoif_bench.poisoning.attacks import naming
from sgoif_bench.poisoning.registry import METHODS, title_of

PAGE = "poisoning.md"
OURS = {True: "sgoif-known", False: "sgoif-unknown"}
"""By whether victims are known."""


RUNS = (
    Runs("CIFAR-10", "poisoning-cifar10.jsonl", (0, 1), "dev"),
    Runs("CIFAR-10", "poisoning-cifar10.jsonl", (2,), "held-out"),
    Runs("MNIST", "poisoning-mnist.jsonl", (0,), "dev"),
    Runs("digits", "poisoning-digits.jsonl", (0, 1, 2), "dev"),
)
HEAD = (
    "data, attack",
    "seeds",
    "success",
    "known: AUPR",
    "best rival",
    "success after",
    "unknown: AUPR",
    "best rival",
    "success after",
    "selection",
)


def by_method(runs: Runs, attack: str) -> dict[str, list[Line]]:
    """The lines of an attack by method."""
    found: dict[str, list[Line]] = {}
    for line in read_lines(runs.file):
        if line["seed"] in runs.seeds and line["attack"] == attack:
            found.setdefault(line["method"], []).append(line)
    return found


def attacks(runs: Runs) -> list[str]:
    """The attacks that were carried out with these seeds, as they are listed."""
    found = {line["attack"] for line in read_lines(runs.file) if line["seed"] in runs.seeds} - {naming.NONE}
    kinds = list(naming.KINDS)
    return sorted(found, key=lambda attack: (kinds.index(naming.parse(attack)[0]), attack))


def percent(lines: Sequence[Line], metric: str, digits: int = 1) -> str:
    """Mean over seeds in percent; a dash where no network was trained again."""
    values = [100 * line["metrics"][metric] for line in lines if line["metrics"][metric] is not None]
    return number(values, spread=False, digits=digits)


def best_rival(found: dict[str, list[Line]], knows_victims: bool) -> str:
    """AUPR and name of the rival that finds most of the poison and knows as much."""
    ours = [name for name in METHODS if name.startswith("sgoif")]
    rivals = [
        name for name in found if name in METHODS and name not in ours and METHODS[name].knows_victims == knows_victims
    ]
    best = max(rivals, key=lambda name: mean(line["metrics"]["aupr"] for line in found[name]))
    return f"{percent(found[best], 'aupr')} {title_of(best)}"


def rows(runs: Runs) -> list[list[str]]:
    """One row for every attack."""
    cells = []
    for attack in attacks(runs):
        found = by_method(runs, attack)
        some = next(iter(found.values()))
        row = [f"{runs.title}, {naming.title_of(attack)}", str(len(some)), percent(some, "success_before", 0)]
        for knows, name in OURS.items():
            lines = found[name]
            row += [percent(lines, "aupr"), best_rival(found, knows), percent(lines, "success_after", 0)]
        cells.append([*row, runs.selection])
    return cells


def summary() -> str:
    """All data sets and attacks."""
    return table(HEAD, [row for runs in RUNS for row in rows(runs)])


TABLES: dict[str, Callable[[], str]] = {"poisoning": summary}
