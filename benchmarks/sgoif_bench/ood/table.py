"""Tables of results on outliers: mean ± standard deviation over seeds, for Markdown, LaTeX or a program.

    sgoif-bench table FILE.jsonl --metric auroc --by set,protocol,noise

The first metric is shown for every out-of-distribution set, then as the mean over the near, the far and all of them;
every further one as its mean over all sets, or as it is. Means are over the sets that all compared results have, so
that nobody profits from a set that was not there for others. Best and ties are marked as in tables of `sgoif-bench
labels`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from sgoif.errors import SettingError
from sgoif_bench.journal import Line
from sgoif_bench.ood.measures import AVERAGED
from sgoif_bench.ood.protocol import PROTOCOLS, TITLES
from sgoif_bench.ood.recipes import TRAININGS
from sgoif_bench.ood.registry import in_order, title_of
from sgoif_bench.tables.cells import Cell, Label, Table
from sgoif_bench.tables.formats import FORMATS, check_shown
from sgoif_bench.tables.lines import Metric, check_comparable, chosen, field_of, words

METRICS: Mapping[str, Metric] = {
    "auroc": Metric("AUROC"),
    "fpr95": Metric("FPR95", higher_is_better=False),
    "aupr_in": Metric("AUPR-in"),
    "aupr_out": Metric("AUPR-out"),
    "fpr95_id_positive": Metric("FPR95 (ID positive)", higher_is_better=False),
    "fpr95_ood_positive": Metric("FPR95 (OOD positive)", higher_is_better=False),
    "accuracy": Metric("ID accuracy"),
    "time_ratio": Metric("time, forward passes", 1, 2, higher_is_better=False),
    "ms_per_image": Metric("ms per image", 1, 3, higher_is_better=False),
    "fit_seconds": Metric("seconds to fit", 1, 1, higher_is_better=False),
    "seconds": Metric("seconds to train", 1, 1, higher_is_better=False, is_cost=True),
    "trainings": Metric("trainings", 1, 2, higher_is_better=False, is_cost=True),
    "memory": Metric("peak memory, MiB", 2**-20, 0, higher_is_better=False, is_cost=True),
}
BY_SET = (*AVERAGED, "fpr95_id_positive", "fpr95_ood_positive")
"""Metrics that every out-of-distribution set has."""
MEANS = ("near", "far", "mean")
DEFAULT_METRICS = "auroc,fpr95,aupr_in,aupr_out,accuracy,time_ratio"


@dataclass(frozen=True)
class OodTableSettings:
    """What is shown, and what makes a table of its own."""

    metric: str = DEFAULT_METRICS
    rows: str = "method"
    by: str = "set,protocol,noise"
    format: str = "markdown"
    where: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_shown(self.metric, METRICS, self.format)
        if not words(self.rows):
            raise SettingError("--rows needs a field, such as method")


def build(lines: Iterable[Line], settings: OodTableSettings) -> list[Table]:
    """The tables that the settings ask for."""
    rows, by = words(settings.rows), [name for name in words(settings.by) if name not in words(settings.rows)]
    parts: dict[Label, list[Line]] = {}
    for line in chosen(lines, settings.where):
        parts.setdefault(tuple(field_of(line, name) for name in by), []).append(line)
    if not set(rows) - {"method", "set", "noise", "protocol", "seed"}:
        for found in parts.values():
            check_comparable(found)
    return [_table(label, parts[label], by, rows, settings) for label in _sorted(by, parts)]


def _table(
    label: Label, lines: Sequence[Line], by: Sequence[str], rows: Sequence[str], settings: OodTableSettings
) -> Table:
    groups = common_groups(lines)
    metrics = words(settings.metric)
    cells: dict[tuple[Label, Label], Cell] = {}
    columns = columns_of(metrics, groups)
    for line in lines:
        row = tuple(field_of(line, name) for name in rows)
        for column in columns:
            metric, over = column
            value = value_of(line, metric, over, groups)
            if value is not None:
                cells.setdefault((row, column), Cell(METRICS[column[0]])).add(line, value)
    if not cells:
        raise SettingError(f"none of these results has {settings.metric}")
    here = {column for _, column in cells}
    positives = {line["fpr95_positive"] for line in lines}
    labels = Labels(metrics[0], positives.pop().upper() if len(positives) == 1 else "")
    shown = [labels(name, value) for name, value in zip(by, label, strict=True)]
    return Table(
        ", ".join([*filter(None, shown), labels.metric(metrics[0])]),
        _sorted(rows, (row for row, _ in cells)),
        [column for column in columns if column in here],
        cells,
        row_fields=rows,
        column_fields=("metric", "over"),
        shown=labels,
    )


def common_groups(lines: Sequence[Line]) -> dict[str, str]:
    """The out-of-distribution sets that all of these results have, with their groups, in the protocol's order."""
    first, *others = lines
    return {name: facts["group"] for name, facts in first["ood"].items() if all(name in line["ood"] for line in others)}


def columns_of(metrics: Sequence[str], groups: Mapping[str, str]) -> list[Label]:
    """Metric and what it is over: sets and means for the first, the mean over all for others, nothing for some."""
    first, *others = metrics
    over = (*groups, *MEANS) if first in BY_SET else ("",)
    return [*((first, name) for name in over), *((name, "mean" if name in BY_SET else "") for name in others)]


def value_of(line: Line, metric: str, over: str, groups: Mapping[str, str]) -> float | None:
    """A figure of a result line; None where it has none."""
    if not over:
        found = line["memory"]["peak_bytes"] if metric == "memory" else line.get(metric, line["metrics"].get(metric))
        return None if found is None else float(found)
    if over in groups:
        return float(line["ood"][over][metric])
    members = [name for name, group in groups.items() if over in ("mean", group)]
    return fmean(line["ood"][name][metric] for name in members) if members else None


@dataclass(frozen=True)
class Labels:
    """How a table whose title names its first metric calls things."""

    first: str
    positive: str
    """The positive class of FPR95, where it is one for all."""

    def __call__(self, name: str, value: Any) -> str:
        if name == "metric":
            return "" if value == self.first else self.metric(value)
        if name == "over":
            return TITLES.get(value, str(value))
        if name == "method":
            return title_of(value)
        if name == "protocol":
            return PROTOCOLS[value].title if value in PROTOCOLS else str(value)
        if name == "noise":
            return "" if value == "none" else str(value)
        if isinstance(value, bool) or value is None:
            return f"{name}: {'none' if value is None else 'yes' if value else 'no'}"
        return str(value) if name == "set" else f"{name} {value}"

    def metric(self, name: str) -> str:
        """A metric; FPR95 with what it counts as positive."""
        return f"FPR95 ({self.positive} positive)" if name == "fpr95" and self.positive else METRICS[name].title


def _sorted(fields: Sequence[str], labels: Iterable[Label]) -> list[Label]:
    """Methods, sets and protocols as they are listed, numbers by size, others as they were found."""
    labels = list(dict.fromkeys(labels))
    listed: list[Sequence[Any]] = []
    for place, name in enumerate(fields):
        values = [label[place] for label in labels]
        known = {"set": list(TRAININGS), "protocol": list(PROTOCOLS), "method": in_order(map(str, values))}
        numbers = sorted({value for value in values if isinstance(value, int | float)})
        listed.append([*known.get(name, numbers), *values])
    return sorted(labels, key=lambda label: [order.index(value) for order, value in zip(listed, label, strict=True)])


def render(lines: Iterable[Line], settings: OodTableSettings) -> str:
    """The tables as text."""
    return FORMATS[settings.format](build(lines, settings))
