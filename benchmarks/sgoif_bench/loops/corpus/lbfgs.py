"""L-BFGS: the optimizer calls for loss and gradient itself, several times with one batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.corpus.networks import features
from sgoif_bench.loops.study import Study, Trained


def train(study: Study) -> Trained:
    """Cross-entropy of large batches; the step stands in the closure, around the passes it asks for."""
    torch.manual_seed(study.seed)
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=256, shuffle=True)

    model = nn.Sequential(features(), nn.Linear(64, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=10)
    monitor = study.monitor(model, optimizer, anchors=holdout_set)
    for _ in range(study.epochs):
        for batch in loader:
            x, y, index = batch

            def closure(x: Tensor = x, y: Tensor = y, index: Tensor = index) -> Tensor:
                optimizer.zero_grad()
                with monitor.step(index):
                    loss: Tensor = criterion(model(x), y)
                    loss.backward()
                return loss

            optimizer.step(closure)
    return Trained(model, monitor)
