"""Sharpness-aware minimisation: two passes over every batch, the second where the loss is highest nearby."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.corpus.networks import convnet
from sgoif_bench.loops.study import Study, Trained


class SAM(torch.optim.Optimizer):
    """Up along the gradient by ρ, then back, and a step of the base optimizer with the gradient found there."""

    def __init__(
        self, parameters: Iterable[Tensor], base: type[torch.optim.Optimizer], rho: float, **kwargs: Any
    ) -> None:
        super().__init__(parameters, {"rho": rho, **kwargs})
        self.base_optimizer = base(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        """Climb."""
        weights = [w for group in self.param_groups for w in group["params"] if w.grad is not None]
        norm = torch.stack([w.grad.norm() for w in weights if w.grad is not None]).norm()
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self.state[w]["before"] = w.clone()
                    w.add_(w.grad * group["rho"] / (norm + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        """Go back, and step."""
        for group in self.param_groups:
            for w in group["params"]:
                if "before" in self.state[w]:
                    w.copy_(self.state[w].pop("before"))
        self.base_optimizer.step()
        self.zero_grad()


def train(study: Study) -> Trained:
    """Cross-entropy, with SGD below. The first pass is the step."""
    torch.manual_seed(study.seed)
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=32, shuffle=True)

    model = convnet()
    criterion = nn.CrossEntropyLoss()
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.05, momentum=0.9)
    monitor = study.monitor(model, optimizer, anchors=holdout_set)
    for _ in range(study.epochs):
        model.train()
        for x, y, index in loader:
            with monitor.step(index):
                criterion(model(x), y).backward()
            optimizer.first_step()
            criterion(model(x), y).backward()
            optimizer.second_step()
    return Trained(model, monitor)
