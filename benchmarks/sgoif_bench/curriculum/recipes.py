"""How a network is trained on each data set; what the command line overrides is as in `bench.labels`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar

from torch import nn

from sgoif.errors import SettingError
from sgoif_bench.labels import recipes
from sgoif_bench.labels.recipes import NETWORKS, Training

HIDDEN = 256


def _mlp(channels: int, classes: int, *, image: int) -> nn.Module:
    """Two hidden layers: learns wrong labels by heart in a few epochs, and is fast without an accelerator."""
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(channels * image * image, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU()),
        *(nn.Linear(HIDDEN, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU()),
        nn.Linear(HIDDEN, classes),
    )


@dataclass(frozen=True, kw_only=True)
class CurriculumTraining(Training):
    """A recipe, and how unequal the classes are made."""

    networks: ClassVar[Mapping[str, Callable[..., nn.Module]]] = {**NETWORKS, "mlp": _mlp}
    tail: float | None = None
    """ρ of a long-tailed version of the data set (`tail`); None: as it is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tail is not None and not self.tail > 1:
            raise SettingError(f"tail = {self.tail} must be more than 1: the first class over the last")


TRAININGS: dict[str, CurriculumTraining] = {
    name: CurriculumTraining(**asdict(training)) for name, training in recipes.TRAININGS.items()
}
"""The defaults by data set: those of `bench.labels`."""
