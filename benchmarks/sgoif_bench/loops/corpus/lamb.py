"""LAMB: Adam's direction, as long in every weight matrix as the matrix itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    """θ ← θ − η (‖θ‖ / ‖u‖) u with u = m̂ / (√v̂ + ε) + λθ."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient."""
        for group in self.param_groups:
            first, second = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state.update(count=0, mean=torch.zeros_like(weight), square=torch.zeros_like(weight))
                state["count"] += 1
                state["mean"].mul_(first).add_(weight.grad, alpha=1 - first)
                state["square"].mul_(second).addcmul_(weight.grad, weight.grad, value=1 - second)
                mean = state["mean"] / (1 - first ** state["count"])
                root = (state["square"] / (1 - second ** state["count"])).sqrt()
                update = mean / (root + group["eps"]) + group["weight_decay"] * weight
                length, size = weight.norm(), update.norm()
                trust = torch.where((length > 0) & (size > 0), length / size, torch.ones_like(size))
                weight.sub_(group["lr"] * trust * update)
