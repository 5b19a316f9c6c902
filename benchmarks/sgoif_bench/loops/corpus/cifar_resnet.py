"""The usual script for CIFAR: a ResNet without a first pool, SGD with momentum, one cosine, random crops and flips."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.study import Study, Trained
from sgoif_bench.models import BasicBlock


class ResNet(nn.Module):
    """A stem and three blocks."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = BasicBlock(16, 16, 1)
        self.layer2 = BasicBlock(16, 32, 2)
        self.layer3 = BasicBlock(32, 64, 2)
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        logits: Tensor = self.linear(F.adaptive_avg_pool2d(out, 1).flatten(1))
        return logits


def crop_and_flip(x: Tensor, padding: int = 1) -> Tensor:
    """Move every image by up to a pixel, and mirror half of them."""
    side = x.shape[-1]
    padded = F.pad(x, (padding,) * 4)
    down, right = torch.randint(2 * padding + 1, (2, len(x)))
    moved = torch.stack(
        [
            image[:, i : i + side, j : j + side]
            for image, i, j in zip(padded, down.tolist(), right.tolist(), strict=True)
        ]
    )
    return torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, moved.flip(-1), moved)


def train(study: Study) -> Trained:
    """Cross-entropy; one step of the schedule an epoch."""
    torch.manual_seed(study.seed)
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=64, shuffle=True)

    net = ResNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=study.epochs)
    monitor = study.monitor(net, optimizer, anchors=holdout_set)
    for _ in range(study.epochs):
        net.train()
        for inputs, targets, index in loader:
            optimizer.zero_grad()
            with monitor.step(index):
                outputs = net(crop_and_flip(inputs))
                loss = criterion(outputs, targets)
                loss.backward()
            optimizer.step()
        scheduler.step()
    return Trained(net, monitor)
