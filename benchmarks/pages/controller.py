"""The tables of the page about the stability controller and the parts of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean

from pages.cells import RESULTS, table
from sgoif_bench.controller.grid import KIND
from sgoif_bench.controller.table import Place, figures, gains, told, variants_in_order
from sgoif_bench.controller.variants import FULL

PAGE = "controller.md"
FILES = "controller-*.jsonl"
SETS = {"digits": "digits", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
WORDS = {
    "kappa-once": "κ of the first epoch stays",
    "kappa-memory": "κ remembers one epoch",
    "kappa-memory-4": "κ remembers four",
    "decay-alone-once": "κ stays, γ₁ = 0",
    "decay-alone-memory": "κ remembers one epoch, γ₁ = 0",
    "opposite-once": "κ stays, τ = κ/β̃Γ",
    "opposite-memory": "κ remembers one epoch, τ = κ/β̃Γ",
    "proxy-weight": "β̃ as weight of a step",
    "proxy-weight-inverse": "1/β̃ as weight of a step",
    "residual-budget": "depth by residual budget",
    "without-gate": "without the gate",
    "moving-average-gate": "moving average as gate",
    "without-calibration": "confidence 0 or 1",
    "without-temperature": "without temperature",
    "without-steering": "without steering",
    "without-trigger": "without refinement",
    "without-sketch": "without the sketch",
    "without-replacement": "without replacement",
    "refine-outside": "refining whom the gate costs most",
    "refine-and-replace-often": "replacing every 20 steps",
    "without-proxy": "κ tracked",
    "without-budget": "without residual budget",
    "spectral-steps": "spectral steps",
    "more-steps": "five spectral steps",
    "groups": "a group for every class",
    "opposite": "τ = κ/β̃Γ",
}
"""Variants as the page calls them."""


def base(name: str) -> str:
    """A row for every variant of a base: what it has over the base, by data set and over all places and seeds."""
    lines = [line for line in KIND.read(sorted(RESULTS.glob(FILES))) if line["base"] == name]
    found = figures(lines)
    sets = [one for one in SETS if any(place[0] == one for place in found[FULL])]
    parts = [{one} for one in sets] + ([set(sets)] if len(sets) > 1 else [])
    head = [*(SETS[one] for one in sets), "all"][: len(parts)]

    def cells(figures: Mapping[Place, float], shown: Callable[[list[float]], str]) -> list[str]:
        return [shown([figure for place, figure in figures.items() if place[0] in part]) for part in parts]

    rows = [["AUPR of the base", *cells(found[FULL], lambda values: f"{fmean(values):.1f}")]]
    rows += [[WORDS[variant], *cells(gains(found, variant), told)] for variant in variants_in_order(name, found)]
    return table(["change", *head], rows)


TABLES: dict[str, Callable[[], str]] = {
    f"controller-{name}": partial(base, name) for name in ("default", "small", "printed")
}
