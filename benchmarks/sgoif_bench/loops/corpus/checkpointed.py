"""Gradient checkpointing: blocks keep no activations and run again in the backward pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.study import Study, Trained


class Residual(nn.Module):
    """A norm and two layers beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x)
        return out


class Net(nn.Module):
    """Four blocks, each behind a checkpoint while it trains."""

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Linear(64, width)
        self.blocks = nn.ModuleList([Residual(width) for _ in range(4)])
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.flatten(1))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        logits: Tensor = self.head(x)
        return logits


def train(study: Study) -> Trained:
    """Cross-entropy."""
    torch.manual_seed(study.seed)
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=32, shuffle=True)

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = study.monitor(model, optimizer, anchors=holdout_set)
    for _ in range(study.epochs):
        model.train()
        for x, y, index in loader:
            optimizer.zero_grad()
            with monitor.step(index):
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return Trained(model, monitor)
