"""The table of the page about what is said of labels: how often it is so, by data set."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pages.cells import read_lines, table
from sgoif_bench.judgement.table import HEAD, by_set, cells, summary

PAGE = "label-errors.md"
MOSTLY, GOOD = 0.9, 0.95
"""Share of repetitions in which something has to hold; AUPR from which a ranking is called good."""
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
    """What looks tell, on the ranking of each run and on a random one, over all runs."""
    lines, rows = read_lines("reviews.jsonl"), []
    areas = {line["name"]: line["aupr"] for line in read_lines("label-errors-corpus.jsonl")}
    good_ones = {name for name, area in areas.items() if area and area["label_score"] >= GOOD}
    for ranking, count in sorted({(line["ranking"], line["looks"]) for line in lines}):
        those = [line for line in lines if (line["ranking"], line["looks"]) == (ranking, count)]
        found = [line["metrics"] for line in those]
        covered = [metrics["covered"] for metrics in found]
        widths = _width([line for line in those if line["rate"]])
        best = _width([line for line in those if line["run"] in good_ones]) if ranking == "own" else "–"
        close, good = (sum(metrics[name] >= MOSTLY for metrics in found) for name in ("close", "f1"))
        stop = [metrics["stop"] for metrics in found if "stop" in metrics]
        cells = [f"{100 * statistics.mean(covered):.0f}% ({100 * min(covered):.0f}%)", widths, best]
        claims = f"{100 * min(stop):.0f}%" if stop else "–"
        rows.append([ranking, str(count), *cells, *(f"{number} of {len(found)}" for number in (close, good)), claims])
    head = [
        "ranking",
        "looks",
        "covered (lowest)",
        "width ÷ plain",
        "good ones",
        "rate close",
        "list near the best",
        "stop true (lowest)",
    ]
    return table([*head, "selection"], [[*row, "held-out"] for row in rows])


def _width(lines: Sequence[Mapping[str, Any]]) -> str:
    """Width of the interval over that of as many plain random looks, in the median run."""
    return f"{statistics.median(line['metrics']['width'] / line['metrics']['plain_width'] for line in lines):.2f}"


TABLES: dict[str, Callable[[], str]] = {
    "label-errors-corpus": corpus,
    "label-errors-looks": looks,
}
