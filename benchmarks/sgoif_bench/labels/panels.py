"""What the pictures of results share: results in groups, curves over epochs, panels, colours and legend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from sgoif.errors import SettingError
from sgoif_bench.journal import Line
from sgoif_bench.labels.registry import in_order, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS = "sgoif"
MOST_PANELS = 12
GREEN, BLUE, RED = "#0b6e4f", "#3b6ea8", "#c1443c"
Setting = tuple[str, str]
"""Data set and noise."""


def setting_of(line: Line) -> Setting:
    """Data set and noise of a result."""
    return line["set"], line["noise"]


def by_setting(lines: list[Line], otherwise: str, most: int | None = MOST_PANELS) -> dict[Setting, list[Line]]:
    """The results of each setting; refused where there are none, or too many for one picture."""
    groups: dict[Setting, list[Line]] = {}
    for line in lines:
        groups.setdefault(setting_of(line), []).append(line)
    if not groups and otherwise:
        raise SettingError(otherwise)
    if most is not None and len(groups) > most:
        raise SettingError(f"{len(groups)} settings are too many for one picture; choose with --where noise=… or set=…")
    return groups


def by_method(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """The results of each method, in the order of the registry."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line["method"], []).append(line)
    return {name: groups[name] for name in in_order(groups)}


REFRESH = {"residual": "residual_mean", "confidence": "confidence_mean"}
"""What a monitor calls it when it writes down each refresh of its bank, in place of a record per epoch."""


def _by_epoch(line: Line, name: str) -> dict[int, float]:
    """A figure by epoch: as recorded, or the mean over the refreshes of the bank in that epoch."""
    details = line.get("details") or {}
    records = [(record["epoch"], record.get(name)) for record in details.get("epochs") or []]
    refreshes = details.get("refreshes") or []
    if refreshes and name in REFRESH and all(value is None for _, value in records):
        steps = _steps_per_epoch(line)
        records = [(-(-entry["step"] // steps), entry.get(REFRESH[name])) for entry in refreshes]
    values: dict[int, list[float]] = {}
    for epoch, value in records:
        if value is not None:
            values.setdefault(max(1, epoch), []).append(float(value))
    return {epoch: fmean(some) for epoch, some in values.items()}


def _steps_per_epoch(line: Line) -> int:
    trained_on: int = line["examples"] - line["recipe"]["anchors"]
    return max(1, -(-trained_on // int(line["recipe"]["batch_size"])))


def has_epochs(line: Line, name: str) -> bool:
    """Whether a result has this figure by epoch."""
    return bool(_by_epoch(line, name))


def curve_of(lines: Iterable[Line], name: str) -> dict[int, list[float]]:
    """The values of all seeds by epoch."""
    values: dict[int, list[float]] = {}
    for line in lines:
        for epoch, value in _by_epoch(line, name).items():
            values.setdefault(epoch, []).append(value)
    return values


def draw_epochs(axes: Axes, lines: list[Line], value: str, name: str, names: Sequence[str], scale: float = 1.0) -> None:
    """The mean over seeds after each epoch, with a band from the least to the largest."""
    curve = {epoch: [scale * each for each in values] for epoch, values in sorted(curve_of(lines, value).items())}
    look = look_of(name, names)
    axes.plot(list(curve), [fmean(values) for values in curve.values()], label=title_of(name), **look)
    if len(lines) > 1:
        low, high = ([pick(values) for values in curve.values()] for pick in (min, max))
        axes.fill_between(list(curve), low, high, color=look["color"], alpha=0.15, linewidth=0)


def new_panel(
    figure: Figure, groups: Mapping[Any, Any], column: int, rows: int = 1, row: int = 0, tall: int = 0
) -> Axes:
    """A panel of one row (or `rows` rows) of panels, the picture growing with their number."""
    figure.set_size_inches(max(5.0, 4.2 * len(groups)), max(3.6 * rows, 0.28 * tall + 1.2))
    return figure.add_subplot(rows, len(groups), row * len(groups) + column + 1)


def colour_of(name: str, names: Sequence[str]) -> str:
    """Ours green, or the influence where that stands for it; gates as in the paper: a moving average blue, none red."""
    if name == _ours_among(names):
        return GREEN
    if "moving" in name:
        return BLUE
    if "without-gate" in name:
        return RED
    return f"C{names.index(name) % 10}"


def look_of(name: str, names: Sequence[str]) -> dict[str, Any]:
    """How the line of a method is drawn: ours thick, beyond ten methods dashed, then dotted."""
    style = ("-", "--", ":")[names.index(name) // 10 % 3]
    width = 2.4 if name == _ours_among(names) else 1.4
    return {"color": colour_of(name, names), "linewidth": width, "linestyle": style}


def _ours_among(names: Sequence[str]) -> str:
    return OURS if OURS in names else "influence"


def tidy(*panels: Axes) -> None:
    """No frame, a faint grid, a small title."""
    for axes in panels:
        axes.title.set_fontsize(10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)


def add_legend(figure: Figure) -> None:
    """One legend for all panels, beside them: with many methods there is no room inside."""
    named: dict[str, Any] = {}
    for axes in figure.axes:
        named |= {str(label): handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if named:
        figure.set_size_inches(figure.get_figwidth() + 2.0, figure.get_figheight())
        figure.legend(list(named.values()), list(named), loc="outside right center", frameon=False, fontsize=8)
