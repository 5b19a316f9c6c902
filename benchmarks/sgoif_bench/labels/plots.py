"""Pictures of result files, drawn without a display.

    sgoif-bench plot KIND FILE.jsonl... --out FILE.png

| kind               | what it shows                                                                                   |
|--------------------|-------------------------------------------------------------------------------------------------|
| `convergence`      | solver residual and AUPR after each epoch, for every method whose lines have both: our gate, a  |
|                    | moving average, none                                                                            |
| `seeds`            | a metric of every method: each seed a dot, their mean a bar                                     |
| `confidence`       | mean confidence of the anchors after each epoch                                                 |
| `gain`             | cumulative AUPR gain over the best rival, or over `--baseline`: across settings and epochs      |
| `precision-recall` | precision at each recall, the mean over seeds                                                   |
| `pareto`           | cost against mean AUPR over the settings that all methods have, and the front: no other method  |
|                    | is cheaper and better                                                                           |

The cumulative gain after k settings (or epochs) is G_k = Σ_{j≤k} (A_j − B_j) / Σ_{j≤k} B_j, where A is our mean AUPR
over seeds and B the reference's: by how much the area under our curve is larger. The best rival is chosen anew for
every setting (and epoch), with the truth at hand; no real rival can choose that well.

Lines of several seeds are drawn as their mean with a band from the least to the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from sgoif.errors import SettingError
from sgoif_bench.drawing import check_picture, picture
from sgoif_bench.journal import Line
from sgoif_bench.labels.lines import METRICS, value_of
from sgoif_bench.labels.panels import (
    GREEN,
    OURS,
    add_legend,
    by_method,
    by_setting,
    colour_of,
    curve_of,
    draw_epochs,
    has_epochs,
    look_of,
    new_panel,
    setting_of,
    tidy,
)
from sgoif_bench.labels.registry import in_order, is_rival, title_of
from sgoif_bench.tables.lines import check_comparable, chosen

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class PlotSettings:
    """What is drawn of the results."""

    kind: str
    where: tuple[str, ...] = ()
    metric: str = "aupr"
    """Of `seeds`, `pareto`."""
    cost: str = "seconds"
    """Of `pareto`: seconds, trainings or memory."""
    baseline: str | None = None
    """Of `gain`: a method, or None for the best rival."""
    title: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingError(f"there is no plot {self.kind!r}; choose from {', '.join(KINDS)}")
        if self.metric not in METRICS:
            raise SettingError(f"there is no metric {self.metric!r}; choose from {', '.join(METRICS)}")
        costs = [name for name, metric in METRICS.items() if metric.is_cost]
        if self.cost not in costs:
            raise SettingError(f"there is no cost {self.cost!r}; choose from {', '.join(costs)}")


def plot(lines: Iterable[Line], settings: PlotSettings, path: Path) -> None:
    """Draw a picture of these results."""
    check_picture(path)
    found = chosen(lines, settings.where)
    check_comparable(found)
    with picture(path, settings.title) as figure:
        KINDS[settings.kind](figure, found, settings)


def draw_convergence(figure: Figure, lines: list[Line], settings: PlotSettings) -> None:
    """Above the residual, below the AUPR, one column per setting."""
    lines = [line for line in lines if has_epochs(line, "residual") and has_epochs(line, "aupr")]
    groups = by_setting(lines, "no result has a residual and an AUPR after each epoch")
    names = in_order({line["method"] for line in lines})
    for column, (setting, part) in enumerate(groups.items()):
        above, below = new_panel(figure, groups, column, 2, 0), new_panel(figure, groups, column, 2, 1)
        for name, own in by_method(part).items():
            draw_epochs(above, own, "residual", name, names)
            draw_epochs(below, own, "aupr", name, names, scale=100)
        above.set(title=", ".join(setting), ylabel="residual ‖g − Hφ‖", yscale="log")
        below.set(xlabel="epoch", ylabel="AUPR")
        tidy(above, below)
    add_legend(figure)


def draw_confidence(figure: Figure, lines: list[Line], settings: PlotSettings) -> None:
    """Confidence over epochs, one panel per setting."""
    lines = [line for line in lines if has_epochs(line, "confidence")]
    groups = by_setting(lines, "no result has a confidence by epoch")
    names = in_order({line["method"] for line in lines})
    for column, (setting, part) in enumerate(groups.items()):
        axes = new_panel(figure, groups, column)
        for name, own in by_method(part).items():
            draw_epochs(axes, own, "confidence", name, names)
        axes.set(title=", ".join(setting), xlabel="epoch", ylabel="mean confidence", ylim=(0, 1.02))
        tidy(axes)
    add_legend(figure)


def draw_seeds(figure: Figure, lines: list[Line], settings: PlotSettings) -> None:
    """Every seed of every method, one panel per setting."""
    metric = METRICS[settings.metric]
    lines = [line for line in lines if value_of(line, settings.metric) is not None]
    groups = by_setting(lines, f"no result has {settings.metric}")
    names = in_order({line["method"] for line in lines})
    for column, (setting, part) in enumerate(groups.items()):
        axes = new_panel(figure, groups, column, tall=len(names))
        for name, own in by_method(part).items():
            values = [metric.scale * (value_of(line, settings.metric) or 0.0) for line in own]
            place, colour = -names.index(name), colour_of(name, names)
            axes.plot(values, [place] * len(values), "o", color=colour, markersize=5, alpha=0.7)
            axes.plot([fmean(values)] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=2)
        axes.set(title=", ".join(setting), xlabel=metric.title)
        axes.set_yticks([-place for place in range(len(names))], [title_of(name) for name in names], fontsize=8)
        tidy(axes)


def draw_precision_recall(figure: Figure, lines: list[Line], settings: PlotSettings) -> None:
    """Mean curve over seeds of every method, one panel per setting."""
    lines = [line for line in lines if line.get("curve")]
    groups = by_setting(lines, "no result has a precision–recall curve")
    names = in_order({line["method"] for line in lines})
    for column, (setting, part) in enumerate(groups.items()):
        axes = new_panel(figure, groups, column)
        for name, own in by_method(part).items():
            precision = [fmean(values) for values in zip(*(line["curve"] for line in own), strict=True)]
            recall = [place / (len(precision) - 1) for place in range(len(precision))]
            axes.plot(recall, precision, label=title_of(name), **look_of(name, names))
        axes.set(title=", ".join(setting), xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
        tidy(axes)
    add_legend(figure)


def draw_gain(figure: Figure, lines: list[Line], settings: PlotSettings) -> None:
    """Across settings, and beside that across epochs where the results have them."""
    lines = [line for line in lines if value_of(line, "aupr") is not None]
    left, right = figure.subplots(1, 2)
    figure.set_size_inches(11, 4.2)
    reference = "the best rival" if settings.baseline is None else title_of(settings.baseline)
    steps = []
    for setting, part in by_setting(lines, "no result has an AUPR", most=None).items():
        means = {name: fmean(value_of(line, "aupr") or 0.0 for line in own) for name, own in by_method(part).items()}
        rival = _reference(means, settings.baseline)
        if OURS in means and rival is not None:
            steps.append((setting, means[OURS], rival))
    if not steps:
        raise SettingError(f"no setting has results of both {OURS} and {reference}")
    one_set = len({setting[0] for setting, _, _ in steps}) == 1
    ticks = [", ".join(setting[1:] if one_set else setting) for setting, _, _ in steps]
    left.plot(range(len(steps)), cumulative_gain([(a, b) for _, a, b in steps]), "o-", color=GREEN)
    left.set_xticks(range(len(steps)), ticks, rotation=30, ha="right", fontsize=8)
    left.set(title="across settings", ylabel=f"cumulative AUPR gain over {reference}, %")
    _draw_gain_by_epoch(right, lines, settings)
    drawn = [left, right]
    if not right.lines:
        right.remove()
        left.set_subplotspec(figure.add_gridspec(1, 1)[0, 0])
        figure.set_size_inches(7, 4.2)
        drawn = [left]
    for axes in drawn:
        axes.axhline(0, color="#8a8d91", linewidth=0.8)
    tidy(*drawn)
    add_legend(figure)


def _draw_gain_by_epoch(axes: Axes, lines: list[Line], settings: PlotSettings) -> None:
    axes.set(title="across epochs", xlabel="epoch")
    for setting, part in by_setting(lines, "", most=None).items():
        curves = {name: curve_of(own, "aupr") for name, own in by_method(part).items()}
        epochs = sorted(curves.get(OURS, {}))
        pairs = []
        for epoch in epochs:
            means = {name: fmean(curve[epoch]) for name, curve in curves.items() if epoch in curve}
            rival = _reference(means, settings.baseline)
            if rival is None:
                break
            pairs.append((means[OURS], rival))
        if pairs:
            axes.plot(epochs[: len(pairs)], cumulative_gain(pairs), linewidth=1.6, label=", ".join(setting))


def _reference(means: Mapping[str, float], baseline: str | None) -> float | None:
    if baseline is not None:
        return means.get(baseline)
    return max((value for name, value in means.items() if is_rival(name)), default=None)


def cumulative_gain(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """By how many percent the sum of the first of each pair exceeds that of the second, up to each place."""
    ours, theirs = (list(accumulate(values)) for values in zip(*pairs, strict=True))
    return [100 * (a - b) / b if b else float("nan") for a, b in zip(ours, theirs, strict=True)]


def draw_pareto(figure: Figure, lines: list[Line], settings: PlotSettings) -> None:
    """Cost and quality of every method over the settings that all of them have."""
    lines = [line for line in lines if None not in (value_of(line, settings.metric), value_of(line, settings.cost))]
    if not lines:
        raise SettingError(f"no result has both {settings.metric} and {settings.cost}")
    methods = by_method(lines)
    common = set.intersection(*({setting_of(line) for line in own} for own in methods.values()))
    if not common:
        raise SettingError("the methods have no setting in common; leave some out with --where method=…")
    cost, quality = METRICS[settings.cost], METRICS[settings.metric]
    points: dict[str, tuple[float, float]] = {}
    for name, own in methods.items():
        kept = [line for line in own if setting_of(line) in common]
        spent = cost.scale * fmean(value_of(line, settings.cost) or 0.0 for line in kept)
        points[name] = spent, quality.scale * fmean(value_of(line, settings.metric) or 0.0 for line in kept)
    axes = figure.subplots()
    figure.set_size_inches(7.5, 5)
    names = in_order(methods)
    sign = 1 if quality.higher_is_better else -1
    front = pareto_front({name: (x, sign * y) for name, (x, y) in points.items()})
    for name, (x, y) in points.items():
        shared = any(line["shared"] for line in methods[name])
        colour = colour_of(name, names)
        axes.plot(x, y, "o", color=colour, markerfacecolor="none" if shared else colour, markersize=7)
    axes.plot(*zip(*(points[name] for name in front), strict=True), "--", color="#8a8d91", linewidth=1, zorder=0)
    axes.set(xlabel=f"{cost.title} (hollow: of a training that several methods share)", ylabel=quality.title)
    title = f"mean over {len(common)} settings" if len(common) > 1 else ", ".join(next(iter(common)))
    axes.set(xscale="log", title=title)
    axes.margins(x=0.12)
    tidy(axes)
    _name_points(axes, {title_of(name): point for name, point in points.items()})


def _name_points(axes: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Names to the right of their points, moved up where they would lie on another."""
    to_pixels = axes.transData.transform
    apart, near = axes.figure.dpi * 10 / 72, axes.figure.dpi * 1.2
    placed: list[tuple[float, float]] = []
    for name, point in sorted(points.items(), key=lambda item: item[1][1]):
        x, y = (float(value) for value in to_pixels(point))
        at = y
        while any(abs(x - other_x) < near and abs(at - other_y) < apart for other_x, other_y in placed):
            at += apart / 4
        placed.append((x, at))
        up = 72 * (at - y) / axes.figure.dpi
        axes.annotate(name, point, xytext=(7, up - 3), textcoords="offset points", fontsize=8)


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names by rising cost: every one is better than all that are cheaper or as cheap."""
    front: list[str] = []
    for name in sorted(points, key=lambda name: (points[name][0], -points[name][1])):
        if not front or points[name][1] > points[front[-1]][1]:
            front.append(name)
    return front


KINDS: dict[str, Callable[[Figure, list[Line], PlotSettings], None]] = {
    "convergence": draw_convergence,
    "seeds": draw_seeds,
    "confidence": draw_confidence,
    "gain": draw_gain,
    "precision-recall": draw_precision_recall,
    "pareto": draw_pareto,
}
