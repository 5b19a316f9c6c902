"""BadNets: a patch in the corner, and a wrong label.

Tianyu Gu, Brendan Dolan-Gavitt, Siddharth Garg: "BadNets: Identifying Vulnerabilities in the Machine Learning Model
Supply Chain", 2017. With m a mask of a few pixels in the corner and p a pattern,

    x' = (1 − m) x + m p,    y' = t

for a share of the examples that are not of class t. At test time any input with the patch shall be answered with t. The
pattern here is a checkerboard in the lower right corner, 3×3 pixels in images of usual size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sgoif_bench.poisoning.attacks.attack import Poisoned, Scene, Trigger, check_rate
from sgoif_bench.poisoning.attacks.patch import Patch


@dataclass(frozen=True)
class BadNets:
    """Patch and wrong label for this share of all examples; the class is drawn where none is given."""

    rate: float = 0.01
    target: int | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        check_rate(self.rate)

    def poison(self, scene: Scene) -> Poisoned:
        """Stamp and relabel."""
        return relabelled(scene, self.rate, self.target, Patch.for_images(scene.images, self.size))


def relabelled(scene: Scene, rate: float, target: int | None, trigger: Trigger) -> Poisoned:
    """A share of the examples of other classes with a trigger and the label of the target class."""
    wanted = scene.class_or_draw(target)
    rows = scene.draw(np.flatnonzero(scene.labels != wanted), scene.budget(rate), f"outside class {wanted}")
    images = trigger(scene.images[torch.from_numpy(rows)])
    return Poisoned(**scene.changed(rows, images, wanted), wanted=wanted, trigger=trigger)
