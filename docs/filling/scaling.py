"""How costs grow: slopes of the measurements on logarithmic axes."""

from __future__ import annotations

from collections.abc import Callable

from filling.cells import read_result, table
from sgoif.bench.growth import TITLES, slopes

FILE = "scaling-cpu.json"


def growth() -> str:
    """The slope of every cost over a whole sweep and at its upper end."""
    sweeps = read_result(FILE)["sweeps"]
    rows = []
    for name, costs in slopes(sweeps).items():
        sizes = [point[name] for point in sweeps[name]]
        for cost, found in costs.items():
            cells = ["–" if found[key] is None else f"{found[key]:.2f}" for key in ("overall", "upper")]
            rows.append([TITLES[name], f"{min(sizes):,} to {max(sizes):,}", cost.rpartition(",")[0], *cells])
    return table(["swept", "sizes", "cost", "slope", "slope between the two largest"], rows)


TABLES: dict[str, Callable[[], str]] = {"scaling-slopes": growth}
