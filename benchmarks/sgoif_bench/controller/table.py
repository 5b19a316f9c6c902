"""Results as Markdown: a table for every base, AUPR of the base and what every variant gains or loses.

The same training serves both, so differences are taken seed by seed; the interval is Student's, at 95%, over all seeds
and places, and nothing is stated where there is one difference alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from sgoif_bench.controller.variants import FULL, VARIANTS
from sgoif_bench.methods import in_order

Line = Mapping[str, Any]
Place = tuple[str, str, int]
"""Data set, noise and seed."""
Figures = dict[str, dict[Place, float]]
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Two-sided 95% points by degrees of freedom, from 1."""
NORMAL = 2.1


def interval(differences: Sequence[float]) -> tuple[float, float | None]:
    """Mean and half-width; None for a single difference."""
    count = len(differences)
    if count < 2:
        return fmean(differences), None
    factor = STUDENT[count - 2] if count - 2 < len(STUDENT) else NORMAL
    return fmean(differences), factor * stdev(differences) / sqrt(count)


def render(lines: Iterable[Line], value: str = "aupr") -> str:
    """A table for every base."""
    by_base: dict[str, list[Line]] = {}
    for line in lines:
        by_base.setdefault(line["base"], []).append(line)
    return "\n\n".join(_table(base, mine, value) for base, mine in by_base.items())


def figures(lines: Iterable[Line], value: str = "aupr") -> Figures:
    """In percent, by method and by data set, noise and seed."""
    found: Figures = {}
    for line in lines:
        figure = line["label_score"] if value == "label_score" else line["metrics"][value]
        found.setdefault(line["method"], {})[line["set"], line["noise"], line["seed"]] = 100 * figure
    return found


def gains(found: Figures, name: str) -> dict[Place, float]:
    """What a variant has over its base, where both were measured."""
    full = found.get(FULL, {})
    return {place: figure - full[place] for place, figure in found[name].items() if place in full}


def variants_in_order(base: str, found: Figures) -> list[str]:
    """The variants of a base that were measured."""
    return in_order({name: _Titled(name) for name in VARIANTS.get(base, {})}, found.keys() - {FULL})


def _table(base: str, lines: Sequence[Line], value: str) -> str:
    places = list(dict.fromkeys((line["set"], line["noise"]) for line in lines))
    found = figures(lines, value)
    full = found.get(FULL, {})
    head = [base, *(" ".join(place) for place in places), "all places"]
    rows = [[FULL, *(_mean([full[k] for k in full if k[:2] == place]) for place in places), _mean(list(full.values()))]]
    for name in variants_in_order(base, found):
        own = gains(found, name)
        cells = [told([own[key] for key in own if key[:2] == place]) for place in places]
        rows.append([name, *cells, told(list(own.values()))])
    ruled = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in ruled)


class _Titled:
    def __init__(self, title: str) -> None:
        self.title = title


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f}" if values else "–"


def told(differences: Sequence[float]) -> str:
    """Mean and interval as a cell."""
    if not differences:
        return "–"
    mean, half = interval(differences)
    signed = f"{mean:+.1f}".replace("-", "−")
    return signed if half is None else f"{signed} ± {half:.1f}"
