"""Lion: a step of fixed size along the sign of a momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Lion(torch.optim.Optimizer):
    """θ ← θ − η (sign(β₁m + (1 − β₁)g) + λθ), then m ← β₂m + (1 − β₂)g."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient."""
        for group in self.param_groups:
            first, second = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                update = (first * momentum + (1 - first) * weight.grad).sign()
                weight.sub_(group["lr"] * (update + group["weight_decay"] * weight))
                momentum.mul_(second).add_(weight.grad, alpha=1 - second)
