"""Mixup and CutMix as their authors publish them: a batch and the same batch in another order, a λ for all of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.corpus.networks import convnet
from sgoif_bench.loops.study import Study, Trained

Mixed = tuple[Tensor, Tensor, Tensor, float]
"""Images, both labels, and what the first of them counts."""


def mixup_data(x: Tensor, y: Tensor, alpha: float = 0.4) -> Mixed:
    """λx + (1 − λ)x′."""
    lam = float(np.random.beta(alpha, alpha))  # noqa: NPY002
    order = torch.randperm(len(x))
    return lam * x + (1 - lam) * x[order], y, y[order], lam


def cutmix_data(x: Tensor, y: Tensor, alpha: float = 1.0) -> Mixed:
    """A rectangle of x′ in x; λ is the share of x that is left."""
    lam = float(np.random.beta(alpha, alpha))  # noqa: NPY002
    order = torch.randperm(len(x))
    height, width = x.shape[-2:]
    size = np.sqrt(1 - lam)
    row, column = np.random.randint(height), np.random.randint(width)  # noqa: NPY002
    top, bottom = (int(np.clip(row + sign * height * size / 2, 0, height)) for sign in (-1, 1))
    left, right = (int(np.clip(column + sign * width * size / 2, 0, width)) for sign in (-1, 1))
    mixed = x.clone()
    mixed[..., top:bottom, left:right] = x[order][..., top:bottom, left:right]
    return mixed, y, y[order], 1 - (bottom - top) * (right - left) / (height * width)


def mix_criterion(criterion: nn.Module, prediction: Tensor, y_a: Tensor, y_b: Tensor, lam: float) -> Tensor:
    """The loss of both labels."""
    loss: Tensor = lam * criterion(prediction, y_a) + (1 - lam) * criterion(prediction, y_b)
    return loss


def _train(study: Study, mix: Callable[[Tensor, Tensor], Mixed]) -> Trained:
    torch.manual_seed(study.seed)
    np.random.seed(study.seed)  # noqa: NPY002
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=32, shuffle=True)

    net = convnet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, study.epochs)
    monitor = study.monitor(net, optimizer, anchors=holdout_set)
    for _ in range(study.epochs):
        net.train()
        for x, y, index in loader:
            mixed, y_a, y_b, lam = mix(x, y)
            optimizer.zero_grad()
            with monitor.step(index, target=(y_a, y_b, lam)):
                loss = mix_criterion(criterion, net(mixed), y_a, y_b, lam)
                loss.backward()
            optimizer.step()
        scheduler.step()
    return Trained(net, monitor)


def mixup(study: Study) -> Trained:
    """Whole images are mixed."""
    return _train(study, mixup_data)


def cutmix(study: Study) -> Trained:
    """Parts of images are exchanged."""
    return _train(study, cutmix_data)
