"""How a network is trained on each data set; the ground truth trains hundreds, so they are small."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from sgoif_bench.labels.recipes import NETWORKS, Training, changed


def mlp(channels: int, classes: int, *, image: int) -> nn.Module:
    """Two hidden layers, no normalisation and no dropout: every library can take its curvature."""
    inputs = channels * image * image
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, classes)
    )


def cnn(channels: int, classes: int, *, image: int) -> nn.Module:
    """Two convolutions, then the network above: some of its layers see many positions of an image, some see one."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 8, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        mlp(16, classes, image=image // 4),
    )


def linear(channels: int, classes: int, *, image: int) -> nn.Module:
    """Softmax regression: its loss is convex, so that trainings agree and even one example shows."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * image * image, classes))


@dataclass(frozen=True, kw_only=True)
class FidelityTraining(Training):
    """A recipe with plain networks beside the others."""

    networks: ClassVar[Mapping[str, Callable[..., nn.Module]]] = {**NETWORKS, "mlp": mlp, "cnn": cnn, "linear": linear}


TRAININGS: dict[str, FidelityTraining] = {
    "digits": FidelityTraining(model="mlp", epochs=30, batch_size=64, learning_rate=0.1, augment=False, anchors=2),
    "mnist": FidelityTraining(
        model="mlp", image=14, limit=5000, epochs=15, batch_size=128, learning_rate=0.1, augment=False, anchors=2
    ),
    "cifar10": FidelityTraining(epochs=15, anchors=2),
}
"""The defaults by data set. Nothing is held out of the training set: queries come from the test set."""


def training_for(name: str, limit: int | None = None, **changes: Any) -> FidelityTraining:
    """The recipe of a data set with these changes; None changes nothing, not even the number of examples."""
    usual = TRAININGS[name].limit if name in TRAININGS else None
    return changed(TRAININGS, name, usual if limit is None else limit, **{"anchors": 2, **changes})
