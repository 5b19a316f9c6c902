"""The table of the page about what is said of labels: how often it is so, by data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pages.cells import read_lines, table
from sgoif_bench.judgement.table import HEAD, by_set, cells, summary

PAGE = "label-errors.md"
PART = "without_decoys"
SETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "svhn": "SVHN",
    "published": "published, CIFAR-10",
}


def corpus() -> str:
    """How often what is stated of the runs of the corpus is so, by data set."""
    lines = [line for line in read_lines("label-errors-corpus.jsonl") if not line["error"] and line[PART]]
    rows = [
        [SETS.get(name, name), *cells(summary(some, PART)), _selection(some)] for name, some in by_set(lines).items()
    ]
    return table(["data set", *HEAD, "selection"], rows)


def _selection(lines: Sequence[Mapping[str, Any]]) -> str:
    """Held out are runs whose judge took its constants from other data sets."""
    return "dev" if any(line["constants"] is None for line in lines) else "held-out"


TABLES: dict[str, Callable[[], str]] = {
    "label-errors-corpus": corpus,
}
