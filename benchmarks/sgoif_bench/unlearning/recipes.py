"""How a network is trained on each data set: as for wrong labels, with more networks to choose from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sgoif_bench.labels import recipes
from sgoif_bench.ood.recipes import OodTraining

TRAININGS: dict[str, OodTraining] = {name: OodTraining(**asdict(found)) for name, found in recipes.TRAININGS.items()}
"""The defaults by data set."""


def training_for(name: str, **changes: Any) -> OodTraining:
    """The recipe of a data set with these changes; None changes nothing."""
    return recipes.changed(TRAININGS, name, **changes)
