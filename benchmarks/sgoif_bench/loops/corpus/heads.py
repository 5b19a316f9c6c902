"""Heads that are not a plain linear layer: one with weight normalisation, one that compares directions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.corpus.networks import features
from sgoif_bench.loops.study import Study, Trained


class CosineHead(nn.Module):
    """Sixteen times the cosine between features and the weights of every class."""

    def __init__(self, width: int, classes: int, scale: float = 16.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, width))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.linear(F.normalize(x), F.normalize(self.weight))


def _train(study: Study, head: nn.Module) -> Trained:
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=32, shuffle=True)

    model = nn.Sequential(features(), head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    monitor = study.monitor(model, optimizer, anchors=holdout_set)
    for _ in range(study.epochs):
        for x, y, index in loader:
            optimizer.zero_grad()
            with monitor.step(index):
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return Trained(model, monitor)


def weight_normed(study: Study) -> Trained:
    """A linear head whose weights are a length times a direction."""
    torch.manual_seed(study.seed)
    return _train(study, weight_norm(nn.Linear(64, 10)))


def cosine(study: Study) -> Trained:
    """A head of normalised weights on normalised features."""
    torch.manual_seed(study.seed)
    return _train(study, CosineHead(64, 10))
