"""One short script with one optimizer after another, each with the rate that its users begin with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.corpus.lamb import Lamb
from sgoif_bench.loops.corpus.lion import Lion
from sgoif_bench.loops.study import Study, Trained


def _train(study: Study, make: Callable[[nn.Module], torch.optim.Optimizer], batch_size: int = 32) -> Trained:
    torch.manual_seed(study.seed)
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=batch_size, shuffle=True)

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = make(model)
    monitor = study.monitor(model, optimizer, anchors=holdout_set)
    for _ in range(study.epochs):
        for x, y, index in loader:
            optimizer.zero_grad()
            with monitor.step(index):
                loss = criterion(model(x), y)
                loss.backward()
            optimizer.step()
    return Trained(model, monitor)


def adam(study: Study) -> Trained:
    """Adam at 0.001."""
    return _train(study, lambda model: torch.optim.Adam(model.parameters(), lr=1e-3))


def adadelta(study: Study) -> Trained:
    """Adadelta at its default rate of one."""
    return _train(study, lambda model: torch.optim.Adadelta(model.parameters()))


def adagrad(study: Study) -> Trained:
    """Adagrad at its default rate of 0.01."""
    return _train(study, lambda model: torch.optim.Adagrad(model.parameters()))


def rmsprop(study: Study) -> Trained:
    """RMSprop with momentum."""
    return _train(study, lambda model: torch.optim.RMSprop(model.parameters(), lr=3e-4, momentum=0.9))


def lion(study: Study) -> Trained:
    """Lion at a third of Adam's rate, with three times the decay."""
    return _train(study, lambda model: Lion(model.parameters(), lr=3e-4, weight_decay=0.03))


def lamb(study: Study) -> Trained:
    """LAMB with larger batches, for which it was made."""
    return _train(study, lambda model: Lamb(model.parameters(), lr=0.01, weight_decay=0.01), batch_size=128)
