"""The table of the page about what is said of labels: how often it is so, by data set."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pages.cells import read_lines, table
from sgoif_bench.judgement.table import HEAD, by_set, cells, summary

PAGE = "label-errors.md"
MOSTLY = 0.9
"""Share of repetitions in which something has to hold."""
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
    lines = [line for line in read_lines("label-errors-corpus.jsonl") if not line["error"]]
    rows = [[SETS.get(name, name), *cells(summary(some)), _selection(some)] for name, some in by_set(lines).items()]
    return table(["data set", *HEAD, "selection"], rows)


def _selection(lines: Sequence[Mapping[str, Any]]) -> str:
    """Held out are runs whose judge took its constants from other data sets."""
    return "dev" if any(line["constants"] is None for line in lines) else "held-out"


def looks() -> str:
    """What looks tell, on the ranking of each case and on a random one, over all cases."""
    lines = read_lines("reviews.jsonl")
    rows = []
    for ranking, count in sorted({(line["ranking"], line["looks"]) for line in lines}):
        found = [line["metrics"] for line in lines if (line["ranking"], line["looks"]) == (ranking, count)]
        covered = [metrics["covered"] for metrics in found]
        widths = statistics.median(metrics["width"] / metrics["plain_width"] for metrics in found)
        close, good = (sum(metrics[name] >= MOSTLY for metrics in found) for name in ("close", "f1"))
        stop = [metrics["stop"] for metrics in found if "stop" in metrics]
        cells = [f"{100 * statistics.mean(covered):.0f}% ({100 * min(covered):.0f}%)", f"{widths:.2f}"]
        claims = f"{100 * min(stop):.0f}%" if stop else "–"
        rows.append([ranking, str(count), *cells, *(f"{number} of {len(found)}" for number in (close, good)), claims])
    head = [
        "ranking",
        "looks",
        "covered (lowest)",
        "width ÷ plain",
        "rate close",
        "list near the best",
        "stop true (lowest)",
    ]
    return table([*head, "selection"], [[*row, "dev"] for row in rows])


TABLES: dict[str, Callable[[], str]] = {
    "label-errors-corpus": corpus,
    "label-errors-looks": looks,
}
