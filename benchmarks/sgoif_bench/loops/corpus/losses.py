"""Losses that are not plain cross-entropy of hard labels: smoothed, weighted by class, focal, distilled."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.corpus.networks import convnet
from sgoif_bench.loops.study import Study, Trained


class FocalLoss(nn.Module):
    """(1 − p)² times the cross-entropy: what is learned already counts less."""

    def __init__(self, gamma: float = 2.0, reduction: str = "mean") -> None:
        super().__init__()
        self.gamma, self.reduction = gamma, reduction

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        entropy = F.cross_entropy(logits, labels, reduction="none")
        loss = (1 - torch.exp(-entropy)) ** self.gamma * entropy
        return loss.mean() if self.reduction == "mean" else loss


def _train(study: Study, criterion: nn.Module) -> Trained:
    torch.manual_seed(study.seed)
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=32, shuffle=True)

    model = convnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=study.epochs * len(loader))
    monitor = study.monitor(model, optimizer, anchors=holdout_set, loss=criterion)
    for _ in range(study.epochs):
        model.train()
        for x, y, index in loader:
            optimizer.zero_grad()
            with monitor.step(index, target=y):
                criterion(model(x), y).backward()
            optimizer.step()
            scheduler.step()
    return Trained(model, monitor)


def label_smoothing(study: Study) -> Trained:
    """A tenth of every label is spread over all classes."""
    return _train(study, nn.CrossEntropyLoss(label_smoothing=0.1))


def class_weights(study: Study) -> Trained:
    """Classes count by the inverse of how often they are given."""
    labels = torch.tensor([int(y) for _, y in study.dataset])  # type: ignore[attr-defined]
    counts = torch.bincount(labels, minlength=10).float()
    return _train(study, nn.CrossEntropyLoss(weight=counts.sum() / (10 * counts)))


def focal(study: Study) -> Trained:
    """Lin et al.'s loss, with γ = 2."""
    return _train(study, FocalLoss())


def distillation(study: Study) -> Trained:
    """A small network learns what a larger one, trained before, says at a temperature of two, mixed with the labels."""
    torch.manual_seed(study.seed)
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=32, shuffle=True)

    teacher = convnet(width=32)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    for _ in range(2):
        for x, y, _ in loader:
            optimizer.zero_grad()
            F.cross_entropy(teacher(x), y).backward()
            optimizer.step()
    teacher.eval()

    student = convnet(width=8)
    optimizer = torch.optim.Adam(student.parameters(), lr=5e-3)
    monitor = study.monitor(student, optimizer, anchors=holdout_set)
    for _ in range(study.epochs):
        student.train()
        for x, y, index in loader:
            with torch.no_grad():
                answers = F.softmax(teacher(x) / 2, dim=1)
            target = 0.5 * answers + 0.5 * F.one_hot(y, 10)
            optimizer.zero_grad()
            with monitor.step(index, target=target):
                F.cross_entropy(student(x), target).backward()
            optimizer.step()
    return Trained(student, monitor)
