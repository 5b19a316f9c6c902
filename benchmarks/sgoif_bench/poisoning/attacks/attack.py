"""What every attack is given, and what it returns.

An attacker may change a share of the training examples, pixels or labels, and nothing else: neither the recipe nor the
network that is trained on them. Either all inputs with a *trigger* shall then be answered with one class, or a few
given test inputs, the *targets*, with a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.errors import SettingError
from sgoif_bench.poisoning.attacks.surrogate import Surrogate

Labels = NDArray[np.int64]
Rows = NDArray[np.int64]
Trigger = Callable[[Tensor], Tensor]
"""Images, uint8 [n, C, H, W], to the same with the trigger."""


@dataclass(frozen=True)
class Targets:
    """Test inputs that are to be answered wrongly."""

    images: Tensor
    """uint8 [T, C, H, W]"""
    labels: Labels
    """What they show."""
    wanted: Labels
    """What the attacker wants to be answered."""

    def __post_init__(self) -> None:
        if not len(self.images) == len(self.labels) == len(self.wanted) > 0:
            raise SettingError(
                f"{len(self.images)} targets with {len(self.labels)} labels and {len(self.wanted)} wanted answers do"
                " not match"
            )
        if (self.labels == self.wanted).any():
            raise SettingError("a target must be wanted to be answered wrongly; one has its own label as wanted answer")


@dataclass(frozen=True)
class Poisoned:
    """A training set after an attack. `is_poison` is for the judge alone."""

    images: Tensor
    labels: Labels
    is_poison: NDArray[np.bool_]
    wanted: int | None = None
    """The class that triggered inputs shall be answered with."""
    trigger: Trigger | None = None
    targets: Targets | None = None
    details: dict[str, Any] = field(default_factory=dict)
    """Figures about the attack for the result file."""


@dataclass
class Scene:
    """What an attacker has: the clean data, random numbers and, where it is asked for, a network of their own."""

    images: Tensor
    """uint8 [N, C, H, W]; never changed in place"""
    labels: Labels
    classes: int
    generator: np.random.Generator
    train: Callable[[], Surrogate] | None = None
    """Trains a network on the clean data."""
    test_images: Tensor | None = None
    """Where targets are taken from."""
    test_labels: Labels | None = None

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels) or self.images.dim() != 4 or self.images.dtype != torch.uint8:
            raise SettingError(
                f"images must be bytes [N, C, H, W] with a label each; got {self.images.dtype} of shape"
                f" {tuple(self.images.shape)} and {len(self.labels)} labels"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def surrogate(self) -> Surrogate:
        """A network of the attacker's own, trained on the clean data when it is first needed."""
        if self.train is None:
            raise SettingError("this attack is made with a network; give the scene a way to train one")
        return self.train()

    def tests(self) -> tuple[Tensor, Labels]:
        """Test images and their labels."""
        if self.test_images is None or self.test_labels is None:
            raise SettingError("this attack chooses targets among test images; give the scene some")
        return self.test_images, self.test_labels

    def class_or_draw(self, target: int | None) -> int:
        """The class that was asked for, or any."""
        if target is None:
            return int(self.generator.integers(self.classes))
        if not 0 <= target < self.classes:
            raise SettingError(f"target = {target} is no class; there are {self.classes}, counted from 0")
        return target

    def draw(self, among: Rows, count: int, what: str) -> Rows:
        """So many of these examples, each once and in order."""
        if count > len(among):
            raise SettingError(
                f"the attack needs {count} examples {what}, but there are {len(among)}; lower its rate, or use more"
                " data"
            )
        return np.sort(self.generator.choice(among, size=count, replace=False))

    def budget(self, rate: float) -> int:
        """Examples that a rate stands for."""
        count = round(rate * len(self))
        if count < 1:
            raise SettingError(f"a rate of {rate:.3%} of {len(self)} examples is less than one; raise the rate")
        return count

    def changed(self, rows: Rows, images: Tensor | None = None, labels: int | Labels | None = None) -> Changed:
        """The data with other images or labels at these rows."""
        pixels, given, mask = self.images, self.labels.copy(), np.zeros(len(self), dtype=bool)
        mask[rows] = True
        if images is not None:
            pixels = self.images.clone()
            pixels[torch.from_numpy(rows)] = images
        if labels is not None:
            given[rows] = labels
        return {"images": pixels, "labels": given, "is_poison": mask}


Changed = dict[str, Any]
"""The first three fields of `Poisoned`."""


class Attack(Protocol):
    """Poisons a training set."""

    @property
    def rate(self) -> float:
        """Share of all training examples that are changed."""

    def poison(self, scene: Scene) -> Poisoned:
        """The scene's data with some of it changed."""


def check_rate(rate: float) -> None:
    """A share of the examples, none and all excluded."""
    if not 0 < rate < 1:
        raise SettingError(f"rate = {rate} must lie strictly between 0 and 1: it is a share of the training examples")


def check_whole(**values: int) -> None:
    """Numbers of which at least one is needed."""
    for name, value in values.items():
        if value < 1:
            raise SettingError(f"{name} = {value} must be at least 1")


def check_epsilon(epsilon: float) -> None:
    """The largest change of a pixel, of the range from black to white."""
    if not 0 < epsilon <= 1:
        raise SettingError(f"epsilon = {epsilon} must lie in (0, 1]: it is a share of the range of a pixel")
