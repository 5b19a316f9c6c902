"""The tables of the page about pretrained networks: what every method finds and how long it takes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from pages.cells import RESULTS, Line, marked, number, read_lines, table
from sgoif_bench.pretrained.grid import KIND
from sgoif_bench.pretrained.sets import SETS

PAGE = "pretrained.md"
FILES = "pretrained*.jsonl"
COLUMNS = {
    "SG-OIF": ("sgoif-frozen",),
    "fine-tuned": ("sgoif-finetuned",),
    "neighbours": ("knn-vote",),
    "SimiFeat": ("simifeat-vote", "simifeat-rank"),
    "cleanlab": ("cleanlab-logistic-confidence", "cleanlab-logistic-margin"),
    "AUM": ("head-aum", "head-aum-early"),
    "loss": ("head-loss", "head-loss-early"),
    "cleanlab, fine-tuned": ("cleanlab-finetuned-confidence", "cleanlab-finetuned-margin"),
}
"""Of two scores of a method the better one is shown."""
TITLES = {
    "photos": "photos of waste",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "textures": "textures",
    "fashion-mnist": "Fashion-MNIST",
    "mnist": "MNIST",
    "digits": "digits",
}
NOISES = {
    "symmetric-15": "symmetric",
    "class-dependent-15": "pairs",
    "instance-15": "by image",
    "human-aggregate": "people, majority",
    "human-random1": "people, single",
    "human-worst": "people, worst",
    "human-noisy": "people",
}
HELD_OUT = ("fashion-mnist",)
"""Data sets that were not looked at when SG-OIF on features was made."""
Place = tuple[str, str]


def places() -> dict[Place, list[Line]]:
    """The lines of every data set and noise, in the order of the registry of sets."""
    latest = {
        KIND.key_of(line): line for path in sorted(RESULTS.glob(FILES)) for line in read_lines(path.name)
    }  # of a cell in two files the later one
    found: dict[Place, list[Line]] = {}
    for line in latest.values():
        found.setdefault((line["set"], line["noise"]), []).append(line)
    noises = list(NOISES)
    return dict(sorted(found.items(), key=lambda item: (list(SETS).index(item[0][0]), noises.index(item[0][1]))))


def areas() -> str:
    """AUPR: a row for every data set and noise, the best in bold, and the mean over rows that all methods have."""
    rows, means = [], []
    for (name, noise), lines in places().items():
        cells = [best(lines, methods) for methods in COLUMNS.values()]
        wrong = statistics.mean(line["wrong"] / line["examples"] for line in lines)
        selection = "held-out" if name in HELD_OUT else "dev"
        rows.append([f"{TITLES[name]}, {NOISES[noise]} {100 * wrong:.0f}%", *marked(cells), selection])
        if all(cells):
            means.append([statistics.mean(values) for values in cells])
    if len(means) > 1:
        columns = [[statistics.mean(column)] for column in zip(*means, strict=True)]
        rows.append([f"mean of the {len(means)} rows that are complete", *marked(columns), ""])
    return table(("images, wrong labels", *COLUMNS, "selection"), rows)


def best(lines: Sequence[Line], methods: Sequence[str]) -> list[float]:
    """AUPR in percent of each seed, of the method with the larger mean."""
    found = [[100 * line["metrics"]["aupr"] for line in lines if line["method"] == name] for name in methods]
    return max((values for values in found if values), key=statistics.mean, default=[])


def seconds() -> str:
    """A row for every data set and machine: seconds from its files to scores, the least of all noises and seeds.

    Other work beside a run makes it longer and never shorter.
    """
    by_machine: dict[tuple[str, str], list[Line]] = {}
    for (name, _), lines in places().items():
        for line in lines:
            by_machine.setdefault((name, line["machine"]["device_type"]), []).append(line)
    rows = []
    for (name, device), lines in by_machine.items():
        cells = [_least_seconds(lines, methods) for methods in COLUMNS.values()]
        rows.append([f"{TITLES[name]}, {MACHINES[device]}", f"{lines[0]['examples']:,}", *cells])
    return table(("images, machine", "number", *COLUMNS), rows)


MACHINES: Mapping[str, str] = {"cpu": "one core", "cuda": "GPU"}


def _least_seconds(lines: Sequence[Line], methods: Sequence[str]) -> str:
    found = [line["seconds"] for line in lines if line["method"] == methods[0]]
    return number([min(found)], spread=False, digits=0) if found else "–"


TABLES: dict[str, Callable[[], str]] = {"pretrained": areas, "pretrained-seconds": seconds}
