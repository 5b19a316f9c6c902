"""Which data sets lie near and which lie far of an in-distribution set, and how FPR95 is counted.

`v1` and `v1.5` are OpenOOD's (Yang et al., NeurIPS 2022 Datasets and Benchmarks; Zhang et al., 2023). For MNIST and
CIFAR they have the same lists; v1.5 has others for ImageNet, and turns FPR95 around: v1 asks how many outliers pass
where 95% of the in-distribution images do, v1.5 how many in-distribution images are rejected where 95% of the outliers
are. `house` is a short protocol of ours, for sets that are small to download.

In-distribution images are all those of the test set. OpenOOD keeps some back to choose hyper-parameters with, which is
not done here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sgoif.errors import SettingError

Group = Literal["near", "far"]
Positive = Literal["id", "ood"]


@dataclass(frozen=True)
class Protocol:
    """Out-of-distribution sets by in-distribution set."""

    name: str
    title: str
    positive: Positive
    """Which of the two is the positive class of FPR95."""
    sets: Mapping[str, Mapping[Group, tuple[str, ...]]]

    def groups(self, name: str) -> dict[str, Group]:
        """The out-of-distribution sets of an in-distribution set, near ones first, with their group."""
        if name not in self.sets:
            raise SettingError(f"protocol {self.name} has no in-distribution set {name!r}; {_choices(self)}")
        return {ood: group for group, members in self.sets[name].items() for ood in members}


def _lists(near: str, far: str) -> dict[Group, tuple[str, ...]]:
    return {"near": tuple(near.split()), "far": tuple(far.split())}


_MNIST = _lists("notmnist fashion-mnist", "texture cifar10 tin places365")
_CIFAR10 = _lists("cifar100 tin", "mnist svhn texture places365")
_CIFAR100 = _lists("cifar10 tin", "mnist svhn texture places365")

TITLES: dict[str, str] = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "notmnist": "notMNIST",
    "svhn": "SVHN",
    "texture": "Texture",
    "tin": "Tiny-ImageNet",
    "places365": "Places365",
    "ssb-hard": "SSB-hard",
    "ninco": "NINCO",
    "inaturalist": "iNaturalist",
    "openimage-o": "OpenImage-O",
    "species": "Species",
    "imagenet-o": "ImageNet-O",
}
"""Out-of-distribution sets as a table calls them."""

PROTOCOLS: dict[str, Protocol] = {
    "v1.5": Protocol(
        "v1.5",
        "OpenOOD v1.5",
        "ood",
        {
            "mnist": _MNIST,
            "cifar10": _CIFAR10,
            "cifar100": _CIFAR100,
            "imagenet": _lists("ssb-hard ninco", "inaturalist texture openimage-o"),
        },
    ),
    "v1": Protocol(
        "v1",
        "OpenOOD v1",
        "id",
        {
            "mnist": _MNIST,
            "cifar10": _CIFAR10,
            "cifar100": _CIFAR100,
            "imagenet": _lists("species inaturalist imagenet-o openimage-o", "texture mnist"),
        },
    ),
    "house": Protocol(
        "house",
        "house protocol",
        "ood",
        {"mnist": _lists("fashion-mnist", "cifar10 texture svhn"), "cifar10": _lists("cifar100", "svhn texture mnist")},
    ),
}


def protocol_of(name: str) -> Protocol:
    """A protocol by its name."""
    if name not in PROTOCOLS:
        raise SettingError(f"there is no protocol {name!r}; choose from {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


def _choices(protocol: Protocol) -> str:
    return f"choose from {', '.join(protocol.sets)}"
