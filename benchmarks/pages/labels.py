"""The table of the page about finding wrong labels: SG-OIF beside the best rival of each setting."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from pages.cells import Line, read_lines, table
from sgoif_bench.labels.grid import KIND
from sgoif_bench.labels.registry import choose, is_rival, title_of
from sgoif_bench.methods import FORMER

PAGE = "labels.md"
SEED = 3
"""The seed that every method was run with."""
NOISES = {
    "symmetric-20": "symmetric 20%",
    "symmetric-40": "symmetric 40%",
    "class-dependent-20": "class-dependent 20%",
    **{
        f"matrix-{rate}-sparsity-{sparsity}": f"matrix {rate}%, sparsity {sparsity}"
        for rate in (20, 40, 70)
        for sparsity in ("0", "0.2", "0.4", "0.6")
    },
    "human-aggregate": "people, majority, 9%",
    "human-random1": "people, single, 17%",
}
SETS = {"CIFAR-10": "labels-cifar10.jsonl", "MNIST": "labels-mnist.jsonl"}
DEV = {("CIFAR-10", noise) for noise in NOISES if noise == "class-dependent-20" or noise.startswith("matrix-70")}
"""Settings whose runs with this seed were looked at when the label score was made."""


def best_rivals() -> str:
    """A row for each data set and noise, those with the smallest lead first, and the mean over each data set."""
    rows = []
    for title, file in SETS.items():
        found: list[tuple[float, str, Line, str, Line]] = []
        for noise, by_method in _runs(file).items():
            own = by_method["sgoif"]
            best = max(filter(is_rival, by_method), key=lambda name: _area(by_method[name]))
            found.append((_area(own) - _area(by_method[best]), noise, own, best, by_method[best]))
        for ahead, noise, own, best, rival in sorted(found, key=lambda row: row[0]):
            areas = f"{_area(own):.1f}", title_of(best), f"{_area(rival):.1f}"
            selection = "dev" if (title, noise) in DEV else "held-out"
            rows.append([f"{title}, {NOISES[noise]}", *areas, f"{rival['trainings']:.0f}", _signed(ahead), selection])
        means = [statistics.mean(map(_area, lines)) for lines in ([row[2] for row in found], [row[4] for row in found])]
        lead = _signed(means[0] - means[1])
        rows.append([f"{title}, mean", f"{means[0]:.1f}", "best of each", f"{means[1]:.1f}", "", lead, ""])
    head = ["images, noise", "SG-OIF", "best rival", "its AUPR", "its trainings", "ahead by", "selection"]
    return table(head, rows)


def _runs(file: str) -> dict[str, dict[str, Line]]:
    """Lines with the seed of all methods, by noise and method."""
    known = {"sgoif", *choose("all")}
    found: dict[str, dict[str, Line]] = {}
    for line in map(KIND.shown, read_lines(file)):
        if line["seed"] == SEED and line["method"].removesuffix(FORMER) in known:
            found.setdefault(line["noise"], {})[line["method"]] = line
    return {noise: found[noise] for noise in NOISES if "sgoif" in found.get(noise, {})}


def _area(line: Line) -> float:
    area: float = 100 * line["metrics"]["aupr"]
    return area


def _signed(points: float) -> str:
    return f"{points:+.2f}".replace("-", "−")


TABLES: dict[str, Callable[[], str]] = {"labels-best-rivals": best_rivals}
