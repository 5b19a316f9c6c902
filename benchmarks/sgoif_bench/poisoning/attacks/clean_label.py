"""Clean-label patch: images that keep their right label, made hard, so that the patch is the easier thing to learn.

Alexander Turner, Dimitris Tsipras, Aleksander Madry: "Label-Consistent Backdoor Attacks", 2019 (first as "Clean-Label
Backdoor Attacks", 2018). Images of the target class t are moved away from it within a small ball, by projected gradient
ascent on the loss of a network trained on clean data, and then stamped:

    x̃ = argmax_{‖x̃ − x‖∞ ≤ ε} ℓ(f(x̃), t),    x' = stamp(x̃),    y' = y = t

Labels stay as they are. The patch stands in all four corners, as the authors have it for training with random crops and
mirroring. They use ε of 8 to 32 of 255 for photographs; digits on black need a larger one to become hard at all. Steps
are ε/10, three times as many as reach across the ball.

Since only images of one class can be used, the rate, which counts all examples, is at most that class's share: at a
rate of 5% about half of one class in ten is changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif_bench.poisoning.attacks.attack import Poisoned, Scene, check_epsilon, check_rate, check_whole
from sgoif_bench.poisoning.attacks.patch import Patch
from sgoif_bench.poisoning.attacks.surrogate import Surrogate, to_bytes


@dataclass(frozen=True)
class CleanLabel:
    """Hardened and stamped images of one class, this share of all examples; the class is drawn where none is given."""

    rate: float = 0.05
    target: int | None = None
    epsilon: float = 16 / 255
    steps: int = 30
    size: int | None = None

    def __post_init__(self) -> None:
        check_rate(self.rate)
        check_epsilon(self.epsilon)
        check_whole(steps=self.steps)

    def poison(self, scene: Scene) -> Poisoned:
        """Harden and stamp; no label changes."""
        wanted = scene.class_or_draw(self.target)
        rows = scene.draw(np.flatnonzero(scene.labels == wanted), scene.budget(self.rate), f"of class {wanted}")
        patch = Patch.for_images(scene.images, self.size, everywhere=True)
        chosen, labels = scene.images[torch.from_numpy(rows)], torch.from_numpy(scene.labels[rows])
        hardened = harder(scene.surrogate, chosen, labels, self.epsilon, self.steps)
        still = scene.surrogate.answers(hardened).argmax(1).cpu() == labels
        details = {"still_recognised": float(still.float().mean()), "share_of_class": len(rows) / _size(scene, wanted)}
        return Poisoned(**scene.changed(rows, patch(hardened)), wanted=wanted, trigger=patch, details=details)


def _size(scene: Scene, wanted: int) -> int:
    return int((scene.labels == wanted).sum())


def harder(surrogate: Surrogate, images: Tensor, labels: Tensor, epsilon: float, steps: int) -> Tensor:
    """Images, uint8, within ε of the given ones, of which the network is least sure: projected gradient ascent."""
    found = []
    for pixels, given in surrogate.batches(images, labels):
        low, high = (pixels - epsilon).clamp_min(0), (pixels + epsilon).clamp_max(1)
        moved = pixels.clone()
        for _ in range(steps):
            moved.requires_grad_(True)
            loss = F.cross_entropy(surrogate.logits(moved), given, reduction="sum")
            (slope,) = torch.autograd.grad(loss, moved)
            moved = (moved.detach() + epsilon / 10 * slope.sign()).clamp(low, high)
        found.append(to_bytes(moved))
    return torch.cat(found)
