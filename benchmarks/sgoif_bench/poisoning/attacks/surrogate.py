"""The attacker's own network: trained on the clean data, looked at and differentiated through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sgoif_bench.batches import crop_and_flip
from sgoif_bench.labels.problem import last_linear

if TYPE_CHECKING:
    from sgoif_bench.command import Say
    from sgoif_bench.labels.problem import Problem

BATCH = 256


@dataclass(frozen=True)
class Surrogate:
    """A trained classifier in evaluation mode, fed with pixels in [0, 1]."""

    model: nn.Module
    problem: Problem
    """What it was trained on, and how."""

    @property
    def device(self) -> torch.device:
        return self.problem.device

    def prepared(self, pixels: Tensor) -> Tensor:
        """Pixels in [0, 1] as the network takes them; differentiable."""
        shape = (1, -1, 1, 1)
        centre = pixels.new_tensor(self.problem.mean).view(shape)
        x = (pixels - centre) / pixels.new_tensor(self.problem.spread).view(shape)
        return x.contiguous(memory_format=torch.channels_last if self.problem.on_gpu else torch.contiguous_format)

    def pixels(self, images: Tensor) -> Tensor:
        """Bytes as pixels in [0, 1] on the device."""
        return images.to(self.device).float() / 255

    def augmented(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Moved and mirrored like images in training; differentiable, since it only moves pixels."""
        recipe = self.problem.recipe
        return crop_and_flip(pixels, generator, recipe.padding, recipe.mirror) if recipe.augment else pixels

    def logits(self, pixels: Tensor) -> Tensor:
        """Answers, in float32 and differentiable."""
        out: Tensor = self.model(self.prepared(pixels)).float()
        return out

    @torch.no_grad()
    def answers(self, images: Tensor) -> Tensor:
        """Logits of bytes, [n, classes] on the device."""
        return torch.cat([self.logits(self.pixels(some)) for some in images.split(BATCH)])

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """What goes into the last linear layer, [n, D] on the device."""
        kept: list[Tensor] = []
        hook = last_linear(self.model).register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0].float()))
        try:
            self.answers(images)
        finally:
            hook.remove()
        return torch.cat(kept)

    def batches(self, images: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Pixels with whatever goes with them, a batch at a time, on the device."""
        for parts in zip(*(every.split(BATCH) for every in (images, *others)), strict=True):
            yield self.pixels(parts[0]), *(part.to(self.device) for part in parts[1:])


def trained_surrogate(problem: Problem, tell: Say) -> Surrogate:
    """A network trained on this clean problem by its recipe."""
    model = problem.new_model()
    problem.fit(model, problem.batches())
    tell("the attacker's network is trained")
    return Surrogate(model.eval(), problem)


def to_bytes(pixels: Tensor) -> Tensor:
    """Pixels in [0, 1] as bytes on the CPU."""
    return (pixels.detach() * 255).round().clamp(0, 255).to(torch.uint8).cpu()
