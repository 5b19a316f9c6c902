"""How the measurements of `sgoif-bench scaling` grow, as slopes and as a picture on logarithmic axes.

    sgoif-bench plot growth results/scaling-cpu.json --out FILE.png

A cost that grows as a power of a size, y = c·x^b, is a straight line of slope b there: 1 is linear, 0 a cost that does
not grow. `overall` is the least-squares slope over all points of a sweep, `upper` that between its two largest. The
second says where a cost is heading, since at small sizes what every step costs anyway hides the growth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sgoif.errors import SettingError
from sgoif_bench.drawing import check_picture, picture
from sgoif_bench.labels.panels import BLUE, GREEN, RED, tidy

Point = Mapping[str, Any]
Sweeps = Mapping[str, Sequence[Point]]


class Cost(NamedTuple):
    """Something that a point costs."""

    title: str
    of: Callable[[Point], float]


def _epoch_seconds(point: Point) -> float:
    return float(point["added_ms"]) / 1000 * float(point["examples"]) / float(point.get("batch_size", BATCH))


BATCH = 128
"""Of the results that were written down before the batch size was."""
SCORING = Cost("scoring a step, ms", lambda point: float(point["scoring_ms"]))
REFRESH = Cost("a refresh, ms", lambda point: float(point["refresh_ms"]))
ADDED = Cost("added to a step, ms", lambda point: float(point["added_ms"]))
EPOCH = Cost("added to an epoch, s", _epoch_seconds)
MEMORY = Cost("memory kept, MB", lambda point: float(point["kept_mb"]))
COSTS: Mapping[str, tuple[Cost, ...]] = {
    "examples": (EPOCH, MEMORY),
    "anchors": (REFRESH, ADDED, MEMORY),
    "parameters": (SCORING, REFRESH, ADDED, MEMORY),
}
TITLES = {"examples": "training examples", "anchors": "anchors", "parameters": "watched weights"}
COLOURS = {EPOCH: GREEN, ADDED: GREEN, REFRESH: BLUE, SCORING: "#8a5fa8", MEMORY: RED}


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float | None:
    """b of y = c·x^b by least squares on logarithms; None for fewer than two sizes, or a cost of nothing."""
    if len(set(sizes)) < 2 or min(costs) <= 0:
        return None
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def slopes(sweeps: Sweeps) -> dict[str, dict[str, dict[str, float | None]]]:
    """Slopes of every cost in every sweep."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for name, points in sweeps.items():
        ordered = sorted(points, key=lambda point: float(point[name]))
        sizes = [float(point[name]) for point in ordered]
        found[name] = {}
        for cost in COSTS[name]:
            values = [cost.of(point) for point in ordered]
            found[name][cost.title] = {"overall": slope(sizes, values), "upper": slope(sizes[-2:], values[-2:])}
    return found


def plot_growth(result: Mapping[str, Any], path: Path, title: str = "") -> None:
    """Draw the costs of every sweep of a result; dashes grow linearly."""
    check_picture(path)
    sweeps: Sweeps = result["sweeps"]
    if unknown := [name for name in sweeps if name not in COSTS]:
        raise SettingError(f"there is no sweep {unknown[0]!r}; known are {', '.join(COSTS)}")
    with picture(path, title, (4.2 * len(sweeps), 3.8)) as figure:
        for column, (name, points) in enumerate(sweeps.items()):
            axes = figure.add_subplot(1, len(sweeps), column + 1)
            ordered = sorted(points, key=lambda point: float(point[name]))
            sizes = [float(point[name]) for point in ordered]
            for cost in COSTS[name]:
                values = [cost.of(point) for point in ordered]
                axes.plot(sizes, values, "o-", color=COLOURS[cost], markersize=4, linewidth=1.6, label=cost.title)
                guide = [values[-1] * size / sizes[-1] for size in sizes[-2:]]
                axes.plot(sizes[-2:], guide, "--", color=COLOURS[cost], linewidth=0.9, alpha=0.6)
            axes.set(xscale="log", yscale="log", xlabel=TITLES[name])
            axes.legend(fontsize=7, frameon=False)
            tidy(axes)
