"""What anybody could look at instead of an expected error: readings of a query that need no curvature.

Each is averaged over the checkpoints of the run, as the expected error is over its scored epochs.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap

from sgoif.core.losses import margin
from sgoif_bench.fidelity.answer import Trained
from sgoif_bench.fidelity.peers.common import ended
from sgoif_bench.labels.problem import last_linear

CHUNK = 50
Values = NDArray[np.float64]


def plain_readings(trained: Trained) -> dict[str, Values]:
    """Per query: doubt 1 − max p, entropy, the margin's distance to zero (negative, so that high is doubtful), and the
    length of the margin's gradient for the head and for all weights.
    """
    model = ended(trained)
    x, y = trained.study.query_tensors()
    head = {id(weight) for weight in last_linear(model).parameters()}

    def figure(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        logits = functional_call(model, weights, (image[None],))
        return margin(logits, label[None])[0], logits[0]

    found: dict[str, list[Tensor]] = {}
    for checkpoint in trained.checkpoints:
        model.load_state_dict(checkpoint.state)
        weights = {name: value.detach() for name, value in model.named_parameters()}
        inside = {name for name, value in model.named_parameters() if id(value) in head}
        parts: dict[str, list[Tensor]] = {}
        for images, labels in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
            slopes, logits = vmap(grad(figure, has_aux=True), in_dims=(None, 0, 0))(weights, images, labels)
            squares = {name: slope.flatten(1).square().sum(1) for name, slope in slopes.items()}
            p = logits.softmax(-1)
            read = {
                "doubt": 1 - p.amax(-1),
                "entropy": -(p * logits.log_softmax(-1)).sum(-1),
                "near zero": -margin(logits, labels).abs(),
                "gradient of the head": sum(squares[name] for name in inside).sqrt(),
                "gradient": sum(squares.values()).sqrt(),
            }
            for name, values in read.items():
                parts.setdefault(name, []).append(values)
        for name, values in parts.items():
            found.setdefault(name, []).append(torch.cat(values))
    return {name: torch.stack(values).mean(0).double().cpu().numpy() for name, values in found.items()}
