"""The tables of the page about probabilities of wrong labels: how often what is stated is so, by groups of runs."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from pages.cells import Line, read_lines, table
from sgoif_bench.judgement.table import HEAD, by_set, cells, summary

PAGE = "label-errors.md"
RANGE = 0.05, 0.15
"""Where the realised false discovery rate should lie if 0.1 was asked for."""
SETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "svhn": "SVHN",
    "published": "published, CIFAR-10",
}
Group = tuple[str, str, list[Line]]
"""What the page calls some runs, whether choices were made looking at them, and their lines."""


def named(file: str, pattern: str) -> list[Line]:
    """Lines whose names begin as `pattern` says."""
    return [line for line in read_lines(f"label-errors{file}.jsonl") if re.match(pattern, line["name"])]


def with_model(file: str, model: str) -> list[Line]:
    """Audits with one network."""
    return [line for line in read_lines(f"label-errors{file}.jsonl") if line["about"]["model"] == model]


def groups() -> list[Group]:
    """All groups in the order of the page."""
    held_out = [line for line in read_lines("label-errors-alone.jsonl") if line["part"] == "checked"]
    return [
        ("CIFAR-10, nine noises, seeds 1 to 3", "dev", named("", r".*-augmented-seed[123]$")),
        ("the same, memorised", "dev", named("", r".*-plain-") + named("-independent", r".*-plain-")),
        ("other noises to 40%, seed 3", "dev", named("-further", r"(?!matrix-70)")),
        ("matrices of 70%, seed 3", "dev", named("-further", r"matrix-70")),
        ("weaker noise, seed 4", "dev", named("-independent", r".*-augmented-seed[34]$")),
        ("weaker noise, seed 5", "held-out", named("-independent", r".*-augmented-seed5$")),
        ("other seeds", "held-out", named("-fresh", "")),
        ("audits of five small sets", "dev", named("-weak", "")),
        ("audits with ResNet-9", "dev", with_model("-middling", "resnet9")),
        ("the same, other seeds", "held-out", with_model("-middling-blind", "resnet9")),
        ("audits, symmetric noise", "held-out", held_out),
        ("audits of clothes, digits, SVHN", "held-out", named("-sets", "")),
        ("audits of at most 800 images", "dev", with_model("-middling", "resnet7-whitened")),
        ("hardly trained models", "dev", named("-early", "")),
    ]


def stated() -> str:
    """How many runs of each group meet what is aimed for."""
    head = ["runs", "with noise", "median AUPR", "ECE ≤ 0.05", "rate ± 2 points", "interval holds", "FDR in range"]
    rows = [[title, *_met(lines), selection] for title, selection, lines in groups()]
    return table([*head, "FDR above", "listed of clean sets", "selection"], rows)


def _met(lines: Sequence[Line]) -> list[str]:
    noisy = [line for line in lines if line["calibration"]["noise_rate_true"]]
    clean = [line["calibration"]["selected"] for line in lines if line not in noisy]
    found = [line["calibration"] for line in noisy]
    rates = [c["false_discovery_rate"] for c in found if c["selected"]]
    areas = [area for area in map(_area, noisy) if area is not None]
    return [
        str(len(noisy)),
        f"{100 * statistics.median(areas):.1f}" if areas else "–",
        _count(c["expected_calibration_error"] <= 0.05 for c in found),
        _count(abs(c["noise_rate"] - c["noise_rate_true"]) <= 0.02 for c in found),
        _count(c["noise_rate_low"] <= c["noise_rate_true"] <= c["noise_rate_high"] for c in found),
        _count(RANGE[0] <= rate <= RANGE[1] for rate in rates),
        _count(rate > RANGE[1] for rate in rates),
        f"{sum(clean)} ({len(clean)})" if clean else "–",
    ]


def _count(found: Iterable[bool]) -> str:
    return str(sum(found))


def _area(line: Line) -> float | None:
    """AUPR of the ranking over the training examples, or of an audit over all images."""
    area: float | None = line["methods"]["label_errors"]["aupr"] if "methods" in line else line.get("aupr")
    return area


def corpus(part: str) -> str:
    """How often what is stated of the runs of the corpus is so, by data set, with decoys or without."""
    lines = [line for line in read_lines("label-errors-corpus.jsonl") if not line["error"] and line[part]]
    rows = [
        [SETS.get(name, name), *cells(summary(some, part)), _selection(some)] for name, some in by_set(lines).items()
    ]
    return table(["data set", *HEAD, "selection"], rows)


def _selection(lines: Sequence[Mapping[str, Any]]) -> str:
    """Held out are runs whose judge took its constants from other data sets."""
    return "dev" if any(line["constants"] is None for line in lines) else "held-out"


TABLES: dict[str, Callable[[], str]] = {
    "label-errors-stated": stated,
    "label-errors-corpus": partial(corpus, "with_decoys"),
    "label-errors-corpus-alone": partial(corpus, "without_decoys"),
}
