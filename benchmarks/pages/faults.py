"""The table of the page about what happens when things go wrong."""

from __future__ import annotations

from collections.abc import Callable

from pages.cells import read_result, table

PAGE = "faults.md"
FILE = "faults.json"
ROUNDS = {
    "first": (FILE, "dev"),
    "second": ("faults-fuzz-again.json", "dev"),
    "third": ("faults-fuzz-third.json", "held-out"),
}
"""Rounds of damaged files; what the first two found was mended afterwards."""
HEAD = ("tried", "how often", "as required", "not", "file", "selection")


def link(name: str) -> str:
    """A result file, to be opened."""
    return f"[`{name}`](../../benchmarks/results/{name})"


def summary() -> str:
    """Kills, bad inputs and damaged files: how often, and how often it went as it should."""
    facts = read_result(FILE)["summary"]
    kills, partial = facts["kills"], facts["partial_files"]
    audits, same = facts["audits"], facts["audits_with_the_same_table"]
    inputs, expected = facts["inputs"], facts["inputs_as_expected"]
    rows = [
        ["kill an audit, then look at its files", kills, kills - partial, partial, link(FILE), "dev"],
        ["resume killed audits to their end", audits, same, audits - same, link(FILE), "dev"],
        ["bad inputs and bad days", inputs, expected, inputs - expected, link(FILE), "dev"],
    ]
    for name, (file, selection) in ROUNDS.items():
        readers = read_result(file)["fuzz"]["readers"].values()
        files = sum(counts["files"] for counts in readers)
        crashes = sum(len(counts["crashes"]) for counts in readers)
        title = f"damaged files, {name} round, {len(readers)} readers"
        rows.append([title, files, files - crashes, crashes, link(file), selection])
    return table(HEAD, [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows])


TABLES: dict[str, Callable[[], str]] = {"faults": summary}
