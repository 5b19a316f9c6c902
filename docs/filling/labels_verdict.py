"""Wrong labels, who is ahead where: SG-OIF beside the best rival of each kind of noise, the same seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from filling.cells import table
from filling.labels import CIFAR, NOISES, SEED, Results, signed
from sgoif.bench.labels.registry import choose, is_rival, title_of


def best_rivals() -> str:
    """A row for each kind of noise, the closest first; rivals that have not been run there are counted."""
    results = Results(CIFAR)
    rivals = [name for name in choose("all") if is_rival(name)]
    found = []
    for noise in NOISES:
        areas = {name: area for name in rivals if (area := _area(results, name, noise)) is not None}
        best, own = max(areas, key=lambda name: areas[name]), _area(results, "sgoif", noise)
        assert own is not None
        found.append((own - areas[best], noise, own, title_of(best), areas[best], len(rivals) - len(areas)))
    rows = [
        [NOISES[noise], f"{own:.1f}", best, f"{area:.1f}", signed(lead), str(lacking)]
        for lead, noise, own, best, area, lacking in sorted(found)
    ]
    own, others = (statistics.mean(line[position] for line in found) for position in (2, 4))
    rows.append(["mean", f"{own:.1f}", "the best of each", f"{others:.1f}", signed(own - others), ""])
    return table(["noise", "SG-OIF", "best rival", "its AUPR", "ahead by", "rivals not run"], rows)


def _area(results: Results, name: str, noise: str) -> float | None:
    areas = (100 * line["metrics"]["aupr"] for line in results.lines(name, noise) if line["seed"] == SEED)
    return next(areas, None)


TABLES: dict[str, Callable[[], str]] = {"cifar10-best-rivals": best_rivals}
