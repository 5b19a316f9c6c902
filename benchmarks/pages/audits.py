"""The table of the page about whole audits."""

from __future__ import annotations

from collections.abc import Callable

from pages.cells import RESULTS, table
from pages.pretrained import NOISES, TITLES
from sgoif_bench.audits.grid import KIND
from sgoif_bench.audits.table import HEAD, rows

PAGE = "audits.md"
FILES = "audits-*.jsonl"
ON = {"cpu": "", "cuda": ", GPU"}


def audits() -> str:
    """A row for every data set and noise."""
    found = rows(KIND.read(sorted(RESULTS.glob(FILES))))
    return table(HEAD, [[f"{TITLES[row.set]}, {NOISES[row.noise]}{ON[row.device]}", *row.cells] for row in found])


TABLES: dict[str, Callable[[], str]] = {"audits": audits}
