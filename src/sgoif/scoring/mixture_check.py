"""Whether labels that are read off the gradient are single labels, or were mixed by mixup, cutmix or a teacher.

Of an example with one label y, δ_j = s (p_j − q_j) with q_j the same for all j ≠ y: 0, or the share that smoothing
gives to every class. Whatever s is, and whatever weights the loss has, δ rises with p but for the label itself, which
lies lower than its p says. Where two classes lie lower than they should, by more than rounding, and one of them is
pushed up as few others are, the label was mixed. Two classes alone say nothing this way, and equal labels that were
mixed are no mixture.
"""

import torch
from torch import Tensor

from sgoif.device.async_scalar import AsyncScalar
from sgoif.errors import StepError

CLEARLY = 0.1
"""By which share of itself, and of the strongest push of the batch, a push has to stand out."""
LEAST_ROWS, LEAST_SHARE = 2, 1 / 32
"""Examples of a batch that have to show it, and their share."""


class MixtureCheck:
    """Raises for a batch of mixed labels: at once on the host, some steps later where a GPU runs behind."""

    def __init__(self, device: torch.device) -> None:
        self.flag = torch.zeros((), device=device)
        """1 once a batch was mixed."""
        self.at_once = device.type == "cpu"
        self.arrival = AsyncScalar()

    def note(self, logits: Tensor, delta: Tensor) -> None:
        """Look at one batch [B, C] without labels of its own; raises on the host only."""
        self.flag = torch.maximum(self.flag, is_mixed(logits, delta))
        if self.at_once:
            self.raise_if_set()
        else:
            self.arrival.send(self.flag)

    def poll(self) -> None:
        """Raise if a flag that has arrived says so."""
        if (flag := self.arrival.arrived()) is not None and bool(flag):
            self.raise_if_set()

    def raise_if_set(self) -> None:
        """Raise if a batch was mixed, once."""
        mixed = bool(self.flag)
        self.flag = torch.zeros_like(self.flag)
        if mixed:
            raise StepError(
                "the loss pushes two or more classes of one example up at once, as mixup, cutmix and distillation do,"
                " so its label cannot be read off the gradient. Pass what the loss was given:"
                " monitor.step(index, target=(labels_a, labels_b, weight)), weight being the share of labels_a, or"
                " target=probabilities of shape [batch, classes]; or target=y, to have steps scored as if y were the"
                " labels"
            )


def is_mixed(logits: Tensor, delta: Tensor) -> Tensor:
    """1 where a batch of gradients [B, C] shows mixed labels, else 0; stays on the device."""
    order = logits.argsort(dim=1)
    push = delta.float().gather(1, order)
    before = push.cummax(1).values.roll(1, 1)  # the largest δ of the classes less probable
    before[:, 0] = -torch.inf
    clear = CLEARLY * push.amin().nan_to_num(0, 0, 0).clamp_max(0).abs()
    low = (before - push > torch.maximum(clear, CLEARLY * push.abs())).sum(1)
    up = (push < -clear).sum(1)
    rows = ((low >= 2) & (up >= 1) & (up <= max(2, logits.shape[1] // 2))).sum()
    return ((rows >= LEAST_ROWS) & (rows >= LEAST_SHARE * len(logits))).float()
