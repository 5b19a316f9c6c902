"""A classifier without training: a pretrained backbone as it is, and a linear head that fits labelled images best.

The sentinel and the poison trace take it like any trained network. The head is the convex one of the unlearner.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.backbones import Backbone
from sgoif.errors import SettingError
from sgoif.tasks.labelled_batches import labelled_batches
from sgoif.tasks.unlearning.head import HeadData, Objective
from sgoif.tasks.unlearning.newton import minimise

L2 = 5e-4
"""Penalty of the head, as the unlearner has it."""
TOLERANCE, BATCH = 1e-4, 64


def probe(backbone: Backbone, data: Any, classes: int | None = None, device: torch.device | str = "cpu") -> nn.Module:
    """A network of the backbone's body and a head that was fitted to its features, in evaluation mode.

    Args:
        backbone: what `load_backbone` loaded.
        data: a data set, a loader or batches (x, y) or (x, y, index), x as `backbone.prepare` returns it.
        classes: number of outputs; one more than the largest label where not given.
        device: where the network runs.

    Example:
        ```python
        from sgoif.backbones import load_backbone
        from sgoif.tasks import PoisonTrace, Sentinel
        from sgoif.tasks.linear_probe import probe

        try:
            backbone = load_backbone("lite0")                        # pip install 'sgoif[pretrained]'
        except ImportError as error:
            print(error)
        else:
            x = backbone.prepare(torch.randint(0, 256, (120, 3, 32, 32), dtype=torch.uint8), 96)
            y = torch.arange(120) % 2
            model = probe(backbone, (x[:60], y[:60]))
            sentinel = Sentinel.fit(model, [(x[:60], y[:60])], calibration=[x[60:]])
            found = PoisonTrace.fit(model, [(x, y)]).suspects()
        ```
    """
    features, labels = _features(backbone, data, torch.device(device))
    known = int(labels.max()) + 1
    if classes is not None and classes < known:
        raise SettingError(f"classes={classes}, and there is a label {known - 1}; labels count from 0")
    if len(labels.unique()) < 2:
        raise SettingError("all examples have one label; a head is learned from at least two classes")
    return with_head(backbone, *fitted_head(features, labels, classes or known)).to(device)


def fitted_head(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Weight [classes, D] and bias [classes] of the head that fits features [n, D] best."""
    data = HeadData(features, labels, classes)
    found = minimise(Objective(data, L2), tolerance=TOLERANCE).w.view(classes, data.width).float()
    return found[:, :-1].contiguous(), found[:, -1].contiguous()


def with_head(backbone: Backbone, weight: Tensor, bias: Tensor) -> nn.Module:
    """The backbone with this head, in evaluation mode."""
    model = backbone.network(len(bias)).requires_grad_(False).eval()
    model.get_submodule("head").load_state_dict({"weight": weight, "bias": bias})
    return model


def _features(backbone: Backbone, data: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    look = body_on(backbone, device)
    parts = [(look(x), y) for x, y, _ in labelled_batches(data, BATCH, lambda found: range(len(found)))]
    if not parts:
        raise SettingError("there are no examples to learn a head from; give some of every class")
    features, labels = (torch.cat(found) for found in zip(*parts, strict=True))
    return features, labels.to(device)


def body_on(backbone: Backbone, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Prepared images to features, on this device."""
    body = backbone.network(2).get_submodule("body").eval().to(device)

    @torch.inference_mode()
    def look(images: Tensor) -> Tensor:
        found: Tensor = body(images.to(device)).float()
        return found

    return look
