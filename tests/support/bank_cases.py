"""Hold-outs that count reads, banks of random numbers, and a small monitored training."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from sgoif import InfluenceMonitor
from sgoif.anchors.bank import AnchorBank
from sgoif.core.parameter_layout import Block, Layout

CPU = torch.device("cpu")


class Reads(Dataset):
    """A data set that counts how often each item is read."""

    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.inputs, self.labels, self.reads = inputs, labels, Counter()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, position: int):
        self.reads[position] += 1
        return self.inputs[position], int(self.labels[position])


def bank_of(labels: list[int], grouping=None, most: int = 1000, count: int | None = None, size: int = 6) -> AnchorBank:
    """A bank whose gradients, directions and confidences are random numbers."""
    data = TensorDataset(torch.arange(len(labels)).float().unsqueeze(1), torch.tensor(labels))
    bank = AnchorBank(data, grouping, most, 0, CPU)
    bank.select(count or most)
    bank.allocate(Layout((Block("head", 2, size // 2),)))
    bank.gradient, bank.phi = torch.randn(len(bank), size), torch.randn(len(bank), size)
    bank.confidence = torch.rand(len(bank))
    return bank


def problem(examples: int = 120, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(examples) % classes
    return torch.randn(classes, 5)[labels] + torch.randn(examples, 5), labels


def train(monitor: InfluenceMonitor, inputs, labels, index, steps: int = 12, batch: int = 10) -> None:
    optimizer = monitor.optimizer
    for step in range(steps):
        rows = index[torch.arange(step * batch, (step + 1) * batch) % len(index)]
        with monitor.step(rows):
            nn.functional.cross_entropy(monitor.model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()


def monitored(anchors, classes: int = 3, **options) -> InfluenceMonitor:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, classes))
    return InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), anchors=anchors, **options)
