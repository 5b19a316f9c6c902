"""How a network is trained on each data set: defaults that every method shares, and what the command line overrides."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from torch import nn

from sgoif.audit.networks import ResNet9
from sgoif.errors import SettingError
from sgoif_bench.labels.problem import Recipe, Schedule
from sgoif_bench.models import digits_net, resnet18_cifar, small_cnn, tiny_vit

ANCHOR_SHARE = 5
"""At most one in so many examples of a shortened data set is an anchor, unless a number is asked for."""


def _resnet9(channels: int, classes: int, *, image: int) -> nn.Module:
    return ResNet9(channels, classes, image=image)


def _resnet18(channels: int, classes: int, *, image: int) -> nn.Module:
    """ResNet-18; larger images are halved after the first convolution."""
    model = resnet18_cifar(channels, classes)
    stem = model.get_submodule("stem")
    if image > 32 and isinstance(stem, nn.Sequential):
        stem.append(nn.MaxPool2d(2))
    return model


def _small_cnn(channels: int, classes: int, *, image: int) -> nn.Module:
    del image
    return small_cnn(channels, classes, width=32)


def _tiny_vit(channels: int, classes: int, *, image: int) -> nn.Module:
    return tiny_vit(channels, classes, image=image)


def _digits_net(channels: int, classes: int, *, image: int) -> nn.Module:
    if (channels, image) != (1, 8):
        raise SettingError(f"digits-net is for 1×8×8 images, not {channels}×{image}×{image}; choose another --model")
    return digits_net(classes)


NETWORKS: Mapping[str, Callable[..., nn.Module]] = {
    "resnet9": _resnet9,
    "resnet18": _resnet18,
    "small-cnn": _small_cnn,
    "tiny-vit": _tiny_vit,
    "digits-net": _digits_net,
}
"""Networks by name, each called with (channels, classes, image=side)."""


@dataclass(frozen=True, kw_only=True)
class Training(Schedule):
    """A recipe in words and numbers, as it is written down and compared."""

    networks: ClassVar[Mapping[str, Callable[..., nn.Module]]] = NETWORKS
    model: str = "resnet9"
    image: int | None = None
    """Side to which images are brought; None leaves them as they are."""
    limit: int | None = None
    """Only so many examples of the data set; None for all."""

    def __post_init__(self) -> None:
        if self.model not in self.networks:
            raise SettingError(f"there is no model {self.model!r}; choose from {', '.join(self.networks)}")
        least = {"epochs": 1, "batch_size": 2, "anchors": 2}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise SettingError(f"{name} = {getattr(self, name)} must be at least {smallest}")
        if not self.learning_rate > 0:
            raise SettingError(f"learning_rate = {self.learning_rate} must be positive")
        if self.limit is not None and self.limit < 10:
            raise SettingError(f"limit = {self.limit} leaves too little to learn from; 10 is the least")
        if self.limit is not None and self.anchors >= self.limit:
            raise SettingError(f"anchors = {self.anchors} leave nothing to train on of limit = {self.limit} examples")

    def recipe(self, side: int) -> Recipe:
        """What a method gets, for images of so many pixels a side."""
        shared = {item.name: getattr(self, item.name) for item in fields(Schedule)}
        return Recipe(model=partial(self.networks[self.model], image=side), **shared)

    def described(self, **further: Any) -> dict[str, Any]:
        """Everything that the outcome depends on beside data set, noise, method and seed."""
        return {**asdict(self), **{name: value for name, value in further.items() if value is not None}}


_CIFAR = Training()
_DIGITS = Training(
    model="digits-net", epochs=30, batch_size=64, learning_rate=0.1, mirror=False, padding=1, anchors=300
)
_MNIST = Training(model="small-cnn", epochs=10, learning_rate=0.2, mirror=False, padding=2)
_PHOTOS = Training(model="resnet18", image=64)

TRAININGS: dict[str, Training] = {
    "digits": _DIGITS,
    "mnist": _MNIST,
    "fashion-mnist": replace(_MNIST, mirror=True),
    "cifar10": _CIFAR,
    "cifar100": replace(_CIFAR, anchors=4000),
    "webvision": _PHOTOS,
    "webvision-mini": _PHOTOS,
    "clothing1m": _PHOTOS,
    "imagenet": _PHOTOS,
}
"""The defaults by data set."""


T = TypeVar("T", bound=Training)


def training_for(name: str, limit: int | None = None, **changes: Any) -> Training:
    """The recipe of a data set with these changes; None changes nothing."""
    return changed(TRAININGS, name, limit, **changes)


def changed(trainings: Mapping[str, T], name: str, limit: int | None = None, **changes: Any) -> T:
    """One of these recipes with these changes; None changes nothing.

    Where the data set is shortened and no number of anchors is asked for, they are at most a fifth of it.
    """
    if name not in trainings:
        raise SettingError(f"there is no data set {name!r}; choose from {', '.join(trainings)}")
    wanted = {field: value for field, value in changes.items() if value is not None}
    if limit is not None:
        wanted.setdefault("anchors", max(2, min(trainings[name].anchors, limit // ANCHOR_SHARE)))
    return replace(trainings[name], limit=limit, **wanted)


def identity(description: Mapping[str, Any]) -> str:
    """A short name of a recipe: the same for the same content, another for any other."""
    text = json.dumps(description, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def file_identity(path: Path) -> str:
    """A short name of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]
