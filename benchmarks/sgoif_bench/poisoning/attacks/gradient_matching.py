"""Gradient matching: invisible changes that make right-labelled images teach one wrong answer.

Jonas Geiping, Liam Fowl, W. Ronny Huang, Wojciech Czaja, Gavin Taylor, Michael Moeller, Tom Goldstein: "Witches' Brew:
Industrial Scale Data Poisoning via Gradient Matching", ICLR 2021. For a target x_t that shall be answered with w, and P
images x_i of class w with changes ‖δ_i‖∞ ≤ ε, both gradients taken over all weights θ of a network trained on clean
data,

    B(δ) = 1 − cos( ∇_θ ℓ(f(x_t), w),  1/P Σ_i ∇_θ ℓ(f(x_i + δ_i), w) )

is made small: whoever trains on the poison then also takes steps that lower the loss of the target's wrong answer.
As the authors do it: Adam on the signs of the gradient, the step cut to a tenth at 3/8, 5/8 and 7/8 of the iterations;
δ projected onto the ball after each; images moved and mirrored at random, as in training, in every iteration; several
restarts from random δ, of which the one with the smallest B is kept. Batches of poison are matched one by one.

They poison 1% of CIFAR-10 with ε = 16/255, 250 iterations and 8 restarts. The step is 0.4 ε, which is their 0.1 in
units of normalised pixels. Their targets are any test inputs; with `among` below 1 they are drawn, as for label flips,
among those that the clean network is least sure of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif_bench.poisoning.attacks.attack import Poisoned, Scene, check_epsilon, check_rate, check_whole
from sgoif_bench.poisoning.attacks.label_flip import AMONG, check_among, draw_targets
from sgoif_bench.poisoning.attacks.surrogate import Surrogate, to_bytes

STEP = 0.4
CUTS = (3 / 8, 5 / 8, 7 / 8)
BATCH = 128


@dataclass(frozen=True)
class GradientMatching:
    """Changed images of the wanted class, this share of all examples, for one target."""

    rate: float = 0.01
    epsilon: float = 16 / 255
    iterations: int = 250
    restarts: int = 4
    among: float = AMONG

    def __post_init__(self) -> None:
        check_rate(self.rate)
        check_among(self.among)
        check_epsilon(self.epsilon)
        check_whole(iterations=self.iterations, restarts=self.restarts)

    def poison(self, scene: Scene) -> Poisoned:
        """Perturb images of the class that the target shall be answered with; no label changes."""
        targets = draw_targets(scene, 1, self.among)
        (wanted,) = targets.wanted.tolist()
        rows = scene.draw(np.flatnonzero(scene.labels == wanted), scene.budget(self.rate), f"of class {wanted}")
        images = scene.images[torch.from_numpy(rows)]
        seed = int(scene.generator.integers(2**62))
        brew = Brew(scene.surrogate, images, wanted, target_gradient(scene.surrogate, targets.images, wanted), seed)
        tried = [brew.restart(self.epsilon, self.iterations) for _ in range(self.restarts)]
        changed, loss = min(tried, key=lambda found: found[1])
        details = {"matching_loss": loss, "matching_loss_unchanged": brew.loss(brew.pixels)}
        return Poisoned(**scene.changed(rows, to_bytes(changed)), targets=targets, details=details)


def weights_of(surrogate: Surrogate) -> list[Tensor]:
    """θ: every weight that is trained."""
    return [weight for weight in surrogate.model.parameters() if weight.requires_grad]


def target_gradient(surrogate: Surrogate, image: Tensor, wanted: int) -> Sequence[Tensor]:
    """∇_θ ℓ(f(x_t), w)."""
    answer = torch.tensor([wanted], device=surrogate.device)
    loss = F.cross_entropy(surrogate.logits(surrogate.pixels(image)), answer)
    return torch.autograd.grad(loss, weights_of(surrogate))


def mismatch(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    """One minus the cosine between two gradients."""
    product = sum(((a * b).sum() for a, b in zip(one, other, strict=True)), start=one[0].new_zeros(()))
    norms = [sum((a.square().sum() for a in each), start=one[0].new_zeros(())).sqrt() for each in (one, other)]
    return 1 - product / (norms[0] * norms[1]).clamp_min(torch.finfo(product.dtype).tiny)


class Brew:
    """Poison in the making."""

    def __init__(self, surrogate: Surrogate, images: Tensor, wanted: int, target: Sequence[Tensor], seed: int) -> None:
        self.surrogate, self.target = surrogate, target
        self.pixels = surrogate.pixels(images)
        self.labels = torch.full((len(images),), wanted, device=surrogate.device)
        self._generator = torch.Generator(device=surrogate.device).manual_seed(seed)

    def restart(self, epsilon: float, iterations: int) -> tuple[Tensor, float]:
        """Changed pixels from a random start, and how badly they match without augmentation."""
        low, high = (-self.pixels).clamp_min(-epsilon), (1 - self.pixels).clamp_max(epsilon)
        start = torch.rand(self.pixels.shape, generator=self._generator, device=self.pixels.device)
        delta = (epsilon * (2 * start - 1)).clamp(low, high).requires_grad_(True)
        optimizer = torch.optim.Adam([delta], lr=STEP * epsilon)
        cuts = [round(cut * iterations) for cut in CUTS]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, cuts, gamma=0.1)
        for _ in range(iterations):
            delta.grad = self._slope(delta).sign()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                delta.clamp_(low, high)
        changed = (self.pixels + delta).detach()
        return changed, self.loss(changed)

    def _slope(self, delta: Tensor) -> Tensor:
        """∇_δ of the sum of B over batches of poison."""
        slopes = []
        for rows in torch.arange(len(delta), device=delta.device).split(BATCH):
            some = delta[rows].detach().requires_grad_(True)
            seen = self.surrogate.augmented(self.pixels[rows] + some, self._generator)
            slopes.append(torch.autograd.grad(self._mismatch(seen, rows, keep=True), some)[0])
        return torch.cat(slopes)

    def _mismatch(self, pixels: Tensor, rows: Tensor, keep: bool = False) -> Tensor:
        loss = F.cross_entropy(self.surrogate.logits(pixels), self.labels[rows])
        gradient = torch.autograd.grad(loss, weights_of(self.surrogate), create_graph=keep)
        return mismatch(gradient, self.target)

    def loss(self, pixels: Tensor) -> float:
        """B of these pixels, the mean over batches."""
        parts = torch.arange(len(pixels), device=pixels.device).split(BATCH)
        return float(np.mean([float(self._mismatch(pixels[rows], rows)) for rows in parts]))
