"""Results as Markdown: what an audit that chooses its way finds and takes, beside one that trains from scratch."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sgoif_bench.pretrained.sets import SETS

Line = Mapping[str, Any]
HEAD = ("images", "automatic", "from scratch", "difference", "chosen", "time ratio")
CHOSEN, SCRATCH = "automatic", "from-scratch"
SAID = {"frozen": "frozen", "finetuned": "fine-tuned", "scratch": "scratch"}


@dataclass(frozen=True)
class Row:
    """Audits of one data set with one noise, made by one recipe, by way and seed."""

    set: str
    noise: str
    device: str
    lines: Mapping[str, Mapping[int, Line]]

    def aupr(self, way: str) -> list[float]:
        """In percent, of every seed."""
        return [100 * line["metrics"]["aupr"] for line in self.lines.get(way, {}).values()]

    @property
    def cells(self) -> list[str]:
        """What stands behind the name."""
        chosen, scratch = self.lines.get(CHOSEN, {}), self.lines.get(SCRATCH, {})
        pairs = [(chosen[seed], scratch[seed]) for seed in chosen if seed in scratch]
        ahead = [100 * (mine["metrics"]["aupr"] - other["metrics"]["aupr"]) for mine, other in pairs]
        ratios = [mine["seconds"] / other["seconds"] for mine, other in pairs]
        ways = Counter(SAID[line["chosen"]] for line in chosen.values())
        named = ", ".join(way if count == len(chosen) else f"{way} {count}" for way, count in ways.most_common())
        difference = _mean(ahead, "+.1f").replace("-", "−")
        return [_mean(self.aupr(CHOSEN)), _mean(self.aupr(SCRATCH)), difference, named or "–", _mean(ratios, ".2f")]


def rows(lines: Iterable[Line]) -> list[Row]:
    """A row for every data set, noise and recipe, in the order of the registry of sets."""
    found: dict[tuple[str, str, str], dict[str, dict[int, Line]]] = {}
    devices: dict[str, str] = {}
    for line in lines:
        if line["metrics"]["aupr"] is not None:
            place = (line["set"], line["noise"], line["recipe_id"])
            found.setdefault(place, {}).setdefault(line["way"], {})[line["seed"]] = line
            devices[line["recipe_id"]] = line["recipe"]["device"]
    ordered = sorted(found.items(), key=lambda item: list(SETS).index(item[0][0]))
    return [Row(name, noise, devices[recipe], ways) for (name, noise, recipe), ways in ordered]


def render(lines: Sequence[Line]) -> str:
    """The main table."""
    table = [HEAD, ["---", *["---:"] * (len(HEAD) - 1)]]
    table += [[f"{row.set} {row.noise}", *row.cells] for row in rows(lines)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table)


def _mean(values: Sequence[float], form: str = ".1f") -> str:
    """Mean, and deviation where there are several."""
    if not values:
        return "–"
    mean = format(statistics.mean(values), form)
    return f"{mean} ± {format(statistics.stdev(values), form.lstrip('+'))}" if len(values) > 1 else mean
