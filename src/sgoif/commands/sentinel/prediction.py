"""What a sentinel says about a batch, from one forward pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sgoif.commands.sentinel.archive import LoadedSentinel
from sgoif.tasks.ood.conformal import p_values


class Predictions(NamedTuple):
    """Of every image of a batch."""

    scores: Tensor
    p_values: Tensor
    predicted: Tensor
    """Numbers of classes."""


@torch.no_grad()
def predict(loaded: LoadedSentinel, images: Tensor) -> Predictions:
    """Score, p-value and the network's answer."""
    sentinel = loaded.sentinel
    seen = sentinel.network.see(images.to(loaded.device))
    scores = sentinel.strangeness(seen)
    answers = torch.nan_to_num(seen.logits, nan=-torch.inf).argmax(1)
    return Predictions(scores.cpu(), p_values(scores, sentinel.calibration).cpu(), answers.cpu())
