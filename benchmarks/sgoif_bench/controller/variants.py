"""The monitors that are compared: bases, forms of the controller, and parts left out of a base.

    printed      the engine as the paper prints it (`Settings.as_printed`)
    small        a bank of a quarter of the hold-out, low-rank curvature and few solver steps: where anchors can be
                 replaced and refined
    default      the engine as it comes, and refining anchors, with the forms of the controller

All monitors of a base watch the same training, so a difference between two of them is one between two settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from sgoif.monitor import InfluenceMonitor
from sgoif.settings import Settings

FULL = "full"


@dataclass(frozen=True)
class Variant:
    """One monitor: changes to the settings of its base, and attributes of its controller and step weight."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    sign: int = 1
    proxy_power: float = 0.0

    def adjust(self, monitor: InfluenceMonitor) -> None:
        """What no setting can say."""
        monitor.controller.sign = self.sign
        monitor.step_weight.proxy_power = self.proxy_power


FORMS: Mapping[str, Variant] = {
    "kappa-once": Variant({"kappa_memory": inf}),
    "kappa-memory": Variant({"kappa_memory": 1.0}),
    "kappa-memory-4": Variant({"kappa_memory": 4.0}),
    "decay-alone-once": Variant({"kappa_memory": inf, "gamma": (0.0, 1.0)}),
    "decay-alone-memory": Variant({"kappa_memory": 1.0, "gamma": (0.0, 1.0)}),
    "opposite-once": Variant({"kappa_memory": inf}, sign=-1),
    "opposite-memory": Variant({"kappa_memory": 1.0}, sign=-1),
    "proxy-weight": Variant(proxy_power=1.0),
    "proxy-weight-inverse": Variant(proxy_power=-1.0),
    "residual-budget": Variant({"residual_budget": 0.5, "solver_steps": 100}),
}
PARTS: Mapping[str, Variant] = {
    "without-gate": Variant({"gate": "none"}),
    "moving-average-gate": Variant({"gate": "moving-average"}),
    "without-calibration": Variant({"gate": "hard"}),
    "without-temperature": Variant({"temperature": None}),
    "without-steering": Variant({"steer": False}),
    "without-trigger": Variant({"refine": False}),
}
OUTSIDE = Variant({"refine_outside": True})
WITHOUT_REPLACEMENT = Variant({"replace_every": 0})
WITHOUT_SKETCH = Variant({"sketch": 0})
VARIANTS: Mapping[str, Mapping[str, Variant]] = {
    "default": {FULL: Variant(), **FORMS, **PARTS},
    "small": {
        FULL: Variant(),
        **PARTS,
        "without-sketch": WITHOUT_SKETCH,
        "without-replacement": WITHOUT_REPLACEMENT,
        "refine-outside": OUTSIDE,
        "refine-and-replace-often": Variant({"replace_every": 20}),
    },
    "printed": {
        FULL: Variant(),
        **{name: part for name, part in PARTS.items() if name != "without-calibration"},
        "without-sketch": WITHOUT_SKETCH,
        "without-replacement": Variant({"replace_every": 0, "coverage_floor": 0.0}),
        "without-proxy": Variant({"kappa_memory": 0.0}),
        "without-budget": Variant({"residual_budget": None}),
        "spectral-steps": Variant({"step_decay": 0.0}),
        "more-steps": Variant({"step_decay": 0.0, "solver_steps": 5}),
        "groups": Variant({"one_pool": False}),
        "opposite": Variant(sign=-1),
    },
}
"""The monitors of every base by name; the first is the base itself."""
SMALL_BANK = 4


def settings_of(base: str, variant: Variant, anchors: int, seed: int) -> Settings:
    """The settings of a monitor whose hold-out has so many examples."""
    if base == "printed":
        return Settings.as_printed(**{"seed": seed, **variant.changes})
    own: dict[str, Any] = {"max_anchors": anchors, "refine": True, "seed": seed}
    if base == "small":
        own |= {"max_anchors": max(1, anchors // SMALL_BANK), "curvature": "lowrank", "solver_steps": 5}
    return Settings(**{**own, **variant.changes})
