"""How a network is trained on each in-distribution set; what the command line overrides is as in `bench.labels`.

OpenOOD trains ResNet-18 for 100 epochs with a cosine schedule from 0.1, batches of 128 and a weight decay of 5e-4. The
one-cycle schedule here comes close in 30 epochs with batches of 512 and four times the learning rate; weight decay and
momentum are the same. `--epochs 100` trains as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from sgoif_bench.batches import Channels
from sgoif_bench.labels.recipes import NETWORKS, Training
from sgoif_bench.models import lenet
from sgoif_bench.ood.resnet50 import ResNet50


def _lenet(channels: int, classes: int, *, image: int) -> nn.Module:
    return lenet(channels, classes, image)


def _resnet50(channels: int, classes: int, *, image: int) -> nn.Module:
    del image
    return ResNet50(channels, classes)


@dataclass(frozen=True, kw_only=True)
class OodTraining(Training):
    """A recipe with the networks that OpenOOD uses beside the others."""

    networks: ClassVar[Mapping[str, Callable[..., nn.Module]]] = {
        **NETWORKS,
        "lenet": _lenet,
        "resnet50": _resnet50,
    }


_CIFAR = OodTraining(model="resnet18", epochs=30)

TRAININGS: dict[str, OodTraining] = {
    "mnist": OodTraining(model="lenet", epochs=10, batch_size=128, learning_rate=0.1, mirror=False, padding=2),
    "cifar10": _CIFAR,
    "cifar100": replace(_CIFAR, anchors=4000),
    "imagenet": OodTraining(model="resnet50", image=224, epochs=90, batch_size=256, learning_rate=0.1, padding=28),
}
"""The defaults by data set."""

STATISTICS: dict[str, tuple[Channels, Channels]] = {"imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}
"""Mean and spread of the channels where published weights expect certain ones; elsewhere they are measured."""
