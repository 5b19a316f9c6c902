"""The optimizers of the benchmarks: SGD or AdamW under a one-cycle schedule."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

LEARNING_RATE = {"sgd": 0.4, "adamw": 0.004}
WEIGHT_DECAY = {"sgd": 5e-4, "adamw": 0.05}
OneCycle = torch.optim.lr_scheduler.OneCycleLR


def make_optimizer(
    model: nn.Module, steps: int, kind: Literal["sgd", "adamw"] = "sgd", lr: float | None = None
) -> tuple[torch.optim.Optimizer, OneCycle]:
    """The optimizer and its one-cycle schedule over so many steps."""
    peak = LEARNING_RATE[kind] if lr is None else lr
    decay = WEIGHT_DECAY[kind]
    optimizer: torch.optim.Optimizer
    if kind == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=peak, momentum=0.9, weight_decay=decay, nesterov=True)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=decay)
    rise = max(0.25, 2 / (steps + 1))  # with a rise of no step at all the schedule would divide by zero
    schedule = OneCycle(optimizer, max_lr=peak, total_steps=steps + 1, pct_start=rise, cycle_momentum=False)
    return optimizer, schedule
