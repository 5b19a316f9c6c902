"""Blended trigger: a faint pattern over the whole image, and a wrong label.

Xinyun Chen, Chang Liu, Bo Li, Kimberly Lu, Dawn Song: "Targeted Backdoor Attacks on Deep Learning Systems Using Data
Poisoning", 2017 (the blended injection strategy). With a pattern k of the image's size,

    x' = (1 − α) x + α k,    y' = t

for a share of the examples that are not of class t. k is the authors' random pattern: every pixel drawn from all
values alike, once for the whole attack. α = 0.2 as in their experiments, in training and at test time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif_bench.poisoning.attacks.attack import Poisoned, Scene, check_rate
from sgoif_bench.poisoning.attacks.badnets import relabelled


@dataclass(frozen=True)
class Blend:
    """Mixes a pattern, uint8 [C, H, W], into images."""

    pattern: Tensor
    alpha: float

    def __call__(self, images: Tensor) -> Tensor:
        """Copies of uint8 images with the pattern over them."""
        mixed = torch.lerp(images.float(), self.pattern.to(images.device).float(), self.alpha)
        return mixed.round().clamp(0, 255).to(torch.uint8)


@dataclass(frozen=True)
class Blended:
    """Pattern and wrong label for this share of all examples; the class is drawn where none is given."""

    rate: float = 0.01
    target: int | None = None
    alpha: float = 0.2

    def __post_init__(self) -> None:
        check_rate(self.rate)
        if not 0 < self.alpha <= 1:
            raise SettingError(f"alpha = {self.alpha} must lie in (0, 1]: it is the share of the pattern in an image")

    def poison(self, scene: Scene) -> Poisoned:
        """Blend and relabel."""
        shape = tuple(scene.images.shape[1:])
        pattern = torch.from_numpy(scene.generator.integers(0, 256, shape, dtype="uint8"))
        return relabelled(scene, self.rate, self.target, Blend(pattern, self.alpha))
