"""How a network is trained on each data set; what the command line overrides is as in `bench.labels`.

Anchors are few: they are held out of the poisoned data and not trained on, poison among them included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from sgoif_bench.labels.recipes import NETWORKS, Training
from sgoif_bench.models import small_cnn


def _tiny_cnn(channels: int, classes: int, *, image: int) -> nn.Module:
    del image
    return small_cnn(channels, classes, width=8)


@dataclass(frozen=True, kw_only=True)
class PoisonTraining(Training):
    """A recipe, with a network that a processor trains in seconds beside the others."""

    networks: ClassVar[Mapping[str, Callable[..., nn.Module]]] = {**NETWORKS, "tiny-cnn": _tiny_cnn}


_MNIST = PoisonTraining(
    model="small-cnn", epochs=10, batch_size=64, learning_rate=0.2, mirror=False, padding=2, anchors=1000
)

TRAININGS: dict[str, PoisonTraining] = {
    "digits": PoisonTraining(
        model="digits-net", epochs=30, batch_size=64, learning_rate=0.1, mirror=False, padding=1, anchors=100
    ),
    "mnist": _MNIST,
    "fashion-mnist": replace(_MNIST, mirror=True),
    "cifar10": PoisonTraining(),
}
"""The defaults by data set."""
