"""Wrong labels by each method's own threshold: ours from the file of the page about calibration, rivals from theirs."""

from __future__ import annotations

from collections.abc import Callable

from filling.cells import Line, marked, read_lines, table
from filling.label_errors import FURTHER, runs
from filling.labels import CIFAR, NOISES, Results
from sgoif.bench.labels.registry import choose, is_rival, title_of


def own_threshold() -> str:
    """CIFAR-10, F1 of what each method flags by itself.

    Ours is judged anew with every change of the calibration and has a file of its own, with other seeds.
    """
    results, own = Results(CIFAR), {**runs("augmented"), **_further()}
    names = [name for name in choose("all") if is_rival(name) and _flags(results, name)]
    rows = []
    for noise in (noise for noise in NOISES if noise in own):
        stated = [line["calibration"] for line in own[noise]]
        cells = [[100 * f1(c["false_discovery_rate"], c["recall"]) for c in stated]]
        cells += [results.values(name, noise, "f1") for name in names]
        rows.append([NOISES[noise], *marked(cells)])
    return table(["noise", "SG-OIF", *map(title_of, names)], rows)


def _further() -> dict[str, list[Line]]:
    """Noises with one run, which have a file of their own."""
    return {line["name"].partition("-augmented-")[0]: [line] for line in read_lines(FURTHER)}


def _flags(results: Results, name: str) -> bool:
    return any(results.values(name, noise, "f1") for noise in NOISES)


def f1(false_discoveries: float | None, recall: float) -> float:
    """F1 of a selection with this share of false discoveries, None where it is empty."""
    precision = 0.0 if false_discoveries is None else 1 - false_discoveries
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


TABLES: dict[str, Callable[[], str]] = {"cifar10-own-threshold": own_threshold}
