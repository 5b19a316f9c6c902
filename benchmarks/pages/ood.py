"""The table of the page about outliers: in every setting the sentinel and its best rivals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pages.cells import Line, read_lines, table
from sgoif_bench.ood.grid import KIND
from sgoif_bench.ood.registry import title_of

PAGE = "ood.md"
OURS, UNGATED = "sentinel", "sentinel-ungated"
RIVALS = 3
"""The best of them by mean AUROC are shown."""
TIMED = tuple(f"ood-cifar10-cost-in-place-{number}.jsonl" for number in range(1, 9))
"""Runs with nothing else on the card, for the times of the networks that were trained beside other work."""


@dataclass(frozen=True)
class Setting:
    """One network and its training data."""

    title: str
    files: Sequence[str]
    selection: str
    timed: Sequence[str] = ()
    """Where times come from, if not from the same files."""


SETTINGS = (
    Setting("CIFAR-10, ResNet-18", ("ood-cifar10.jsonl", "ood-cifar10-trained.jsonl"), "dev", TIMED),
    Setting("20% wrong labels", ("ood-cifar10-symmetric-20.jsonl",), "dev", TIMED),
    Setting("small CNN", ("ood-cifar10-small-cnn.jsonl",), "dev"),
    Setting("MNIST, LeNet", ("ood-mnist.jsonl", "ood-mnist-trained.jsonl"), "held-out"),
)
HEAD = ("setting", "detector", "near", "far", "mean", "FPR95", "time", "selection")


def by_method(files: Sequence[str]) -> dict[str, list[Line]]:
    """The lines of these files by method."""
    found: dict[str, list[Line]] = {}
    for file in files:
        for line in map(KIND.shown, read_lines(file)):
            found.setdefault(line["method"], []).append(line)
    return found


def percent(lines: Sequence[Line], metric: str) -> float:
    """A figure in percent, mean over seeds."""
    return 100 * float(statistics.mean(line["metrics"][metric] for line in lines))


def best_rivals(found: dict[str, list[Line]], count: int = RIVALS) -> list[str]:
    """The rivals with the highest mean AUROC, best first."""
    rivals = [method for method in found if method not in (OURS, UNGATED)]
    return sorted(rivals, key=lambda method: -percent(found[method], "mean_auroc"))[:count]


def time_of(lines: Sequence[Line]) -> str:
    """Median time of a score in units of a plain forward pass."""
    return f"{statistics.median(line['metrics']['time_ratio'] for line in lines):.2f}" if lines else "–"


def rows(setting: Setting) -> list[list[str]]:
    """The sentinel and its best rivals in one setting."""
    found = by_method(setting.files)
    timed = by_method(setting.timed) if setting.timed else found
    cells = []
    for method in (OURS, *best_rivals(found)):
        lines = found[method]
        auroc = [f"{percent(lines, f'{part}_auroc'):.2f}" for part in ("near", "far", "mean")]
        false_alarms = f"{percent(lines, 'mean_fpr95'):.1f}"
        mark = setting.selection if method == OURS else "–"
        shown = [title_of(method), *auroc, false_alarms, time_of(timed.get(method, [])), mark]
        cells.append([setting.title, *shown])
    return cells


def summary() -> str:
    """All settings, one after the other."""
    return table(HEAD, [row for setting in SETTINGS for row in rows(setting)])


TABLES: dict[str, Callable[[], str]] = {"ood": summary}
