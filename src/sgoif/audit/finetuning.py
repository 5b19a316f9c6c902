"""Fine-tuning: a pretrained network that is trained further, all of it, at the resolution that suits the images.

Images stay as small on disk and in memory as they are; the network enlarges them where it runs.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.audit.batches import Normalisation
from sgoif.audit.settings import SMALLEST_IMAGE, AuditSettings
from sgoif.backbones import Backbone, load_backbone
from sgoif.core.batches import filled
from sgoif.core.types import Array
from sgoif.errors import MissingExtraError, ModelError
from sgoif.images.backends import Store
from sgoif.images.reading import usual_side
from sgoif.tracking.evaluation import evaluation

TUNED = re.compile(r"(?P<backbone>.+)@(?P<resolution>[1-9][0-9]{0,3})")
"""The name of a network that is trained further: the backbone and the pixels a side that it looks at."""
BODY_SHARE = 0.1
"""Learning rate of the pretrained layers, as a part of that of the fresh head. What they know is to be adapted and
not to be learned anew, least of all from wrong labels."""
MEMORY = 0.1
"""Least momentum of batch norm, which trains as usual. Held-out images are judged by its running statistics all along,
and the 0.01 of EfficientNet follows too slowly for a run of some hundred steps: on 300 photos the loss of held-out
images was 1.8 after 52 steps, with 0.1 it was 1.4, and 2.1 where the statistics stayed those of ImageNet."""


class Resize(nn.Module):
    """Images to one size, on the device of the network."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        side = images.shape[-1]
        if side == self.size:
            return images
        return F.interpolate(images, (self.size, self.size), mode="bilinear", antialias=side > self.size)


def load_pretrained(name: str) -> Backbone:
    """The backbone of a name; raises where there is none to train further."""
    found = load_backbone(name)
    if found is None:
        raise ModelError(f"backbone {name!r} is no network that could be trained further")
    return found


def wanted_backbone(settings: AuditSettings) -> Backbone:
    """The backbone that is asked for; raises where it or the resolution cannot be had."""
    try:
        found = load_pretrained(settings.backbone)
    except MissingExtraError as error:
        error.msg = f"{error}, or give --from-scratch to train a small network from scratch"
        raise
    found.checked_size(settings.image_size)
    return found


def choose_sizes(settings: AuditSettings, backbone: Backbone, store: Store) -> tuple[int, int]:
    """Pixels a side that the network looks at, and that images are kept at: no more than they have."""
    side = usual_side(store) or float(backbone.size)
    resolution = settings.image_size or backbone.resolution_for(side)
    return resolution, max(SMALLEST_IMAGE, min(resolution, round(side)))


def tuned_name(backbone: str, resolution: int) -> str:
    """The name of a network to be trained further, which `tuned_network` makes."""
    return f"{backbone}@{resolution}"


def described(model: str) -> str:
    """The name of a model as people read it."""
    found = TUNED.fullmatch(model)
    return f"{found['backbone']}, fine-tuned at {found['resolution']} pixels" if found else model


def tuned_network(name: str, classes: int, backbone: Backbone | None = None) -> nn.Sequential:
    """The network of a name: images of any size, normalised for the backbone, to logits.

    Its state is that of `Backbone.network(classes)`.
    """
    found = TUNED.fullmatch(name)
    assert found is not None
    backbone = backbone or load_pretrained(found["backbone"])
    network = backbone.network(classes)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d) and module.momentum is not None:
            module.momentum = max(module.momentum, MEMORY)
    parts: dict[str, nn.Module] = dict(network.named_children())
    return nn.Sequential(OrderedDict(resize=Resize(backbone.checked_size(int(found["resolution"]))), **parts))


def features_of(network: nn.Module, images: Iterable[Tensor], device: torch.device) -> Array:
    """What such a network makes of normalised images before its head, float32 [n, width]; its mode stays as it was.

    All parts of images are of one size but for the last, which a GPU gets filled up: each new size costs it seconds.
    """
    found, size = [], 0
    with evaluation(network), torch.inference_mode():
        for part in images:
            count, size = len(part), max(size, len(part)) if device.type == "cuda" else 0
            x = filled(part.to(device), size).contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                x = network.get_submodule("body")(network.get_submodule("resize")(x))
            found.append(x[:count].float().cpu())
    return torch.cat(found).numpy()


def normalisation_of(backbone: Backbone) -> Normalisation:
    """What a backbone subtracts and divides by; grey images become three equal colours."""
    mean, spread = (tuple(255 * value for value in values) for values in (backbone.mean, backbone.std))
    return Normalisation(mean, spread)


def rates(model: nn.Module, tuned: bool) -> list[dict[str, Any]]:
    """Parameters for the optimizer, each group with its share of the learning rate."""
    if not tuned:
        return [{"params": list(model.parameters()), "share": 1.0}]
    head = list(model.get_submodule("head").parameters())
    return [
        {"params": list(model.get_submodule("body").parameters()), "share": BODY_SHARE},
        {"params": head, "share": 1.0},
    ]
