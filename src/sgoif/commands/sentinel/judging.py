"""What a sentinel says about a batch, from one forward pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sgoif.commands.sentinel.archive import Opened
from sgoif.tasks.ood.conformal import p_values


class Judged(NamedTuple):
    """Of every image of a batch."""

    scores: Tensor
    p_values: Tensor
    predicted: Tensor
    """Numbers of classes."""


@torch.no_grad()
def judge(opened: Opened, images: Tensor) -> Judged:
    """Score, p-value and the network's answer."""
    sentinel = opened.sentinel
    seen = sentinel.network.see(images.to(opened.device))
    scores = sentinel.strangeness(seen)
    answers = torch.nan_to_num(seen.logits, nan=-torch.inf).argmax(1)
    return Judged(scores.cpu(), p_values(scores, sentinel.calibration).cpu(), answers.cpu())
