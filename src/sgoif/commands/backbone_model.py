"""A pretrained backbone in the place of a trained model: its head is learned from the labels of the data."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sgoif.audit.batches import Normalisation
from sgoif.backbones import Backbone, load_backbone
from sgoif.backbones.efficientnet_lite import VARIANTS
from sgoif.commands.image_batches import Preparation
from sgoif.commands.trained_model import TrainedModel
from sgoif.errors import ModelError, SettingError
from sgoif.tasks.linear_probe import body_on, fitted_head, with_head

HARMLESS = tuple(VARIANTS)
"""Backbones whose weights come with a package, so that a file may name them."""


@dataclass(frozen=True)
class BackboneModel(TrainedModel):
    """A backbone, named by `model`, with its head."""

    head: tuple[Tensor, Tensor]
    """Weight and bias."""

    def build(self, device: torch.device) -> nn.Module:
        """The network with its head."""
        backbone, (weight, bias) = open_backbone(self.model), self.head
        expected = (len(self.class_names), backbone.width)
        if weight.shape != expected or bias.shape != expected[:1]:
            raise ModelError(
                f"the head is {tuple(weight.shape)} and {tuple(bias.shape)}, but the backbone {self.model} needs"
                f" {expected}: the file is damaged or belongs to another backbone; fit it again"
            )
        return with_head(backbone, weight, bias).to(device)


def open_backbone(name: str) -> Backbone:
    """The backbone of that name; raises for "none" too."""
    found = load_backbone(name)
    if found is None:
        raise SettingError(f"--backbone {name} names no network; give one, such as lite0, or leave it away")
    return found


def preparation_of(backbone: Backbone, size: int | None) -> Preparation:
    """How images are prepared for it."""
    if size is not None and size not in backbone.sizes:
        raise SettingError(
            f"--image-size {size} is not valid: the backbone {backbone.name} works at"
            f" {', '.join(map(str, backbone.sizes))} pixels"
        )
    mean, spread = (tuple(255 * value for value in values) for values in (backbone.mean, backbone.std))
    return Preparation(size or backbone.size, 3, Normalisation(mean, spread))


def learned_model(
    backbone: Backbone,
    prepare: Preparation,
    class_names: list[str],
    batches: Iterable[tuple[Tensor, Tensor]],
    device: torch.device,
) -> BackboneModel:
    """The backbone with a head learned from prepared images and their labels."""
    look = body_on(backbone, device)
    parts = [(look(images), labels) for images, labels in batches if len(labels)]
    features, labels = (torch.cat(found) for found in zip(*parts, strict=True)) if parts else (torch.empty(0, 1),) * 2
    if len(labels.unique()) < 2:
        raise SettingError("a head is learned from images of at least two classes that can be read; here are fewer")
    weight, bias = fitted_head(features, labels.to(device), len(class_names))
    return BackboneModel(backbone.name, None, class_names, prepare, (weight.cpu(), bias.cpu()))


def trusted_backbone(named: str, given: str | None, where: str, say: Callable[[str], None]) -> str:
    """The backbone to load where a file names one: what the user gave, else one whose weights come with a package."""
    if given is not None:
        if given != named:
            say(f"the backbone is {given}, as --backbone says; {where} names {named!r}")
        return given
    if named not in HARMLESS:
        raise ModelError(
            f"{where} names the backbone {named!r}. Its weights are fetched or read from a file, for which the word of"
            " a file is not enough: if you trust them, name it yourself with --backbone"
        )
    return named
