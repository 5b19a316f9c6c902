"""A wide network with much dropout, as one tries first where data are few."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.study import Study, Trained


def train(study: Study) -> Trained:
    """Cross-entropy, SGD with Nesterov's momentum."""
    torch.manual_seed(study.seed)
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=32, shuffle=True)

    model = nn.Sequential(
        *(nn.Flatten(), nn.Dropout(0.2)),
        *(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(256, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.95, nesterov=True)
    monitor = study.monitor(model, optimizer, anchors=holdout_set)
    for _ in range(study.epochs):
        model.train()
        for x, y, index in loader:
            optimizer.zero_grad()
            with monitor.step(index):
                loss = F.cross_entropy(model(x), y)
                loss.backward()
            optimizer.step()
    return Trained(model, monitor)
