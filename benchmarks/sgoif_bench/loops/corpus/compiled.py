"""torch.compile around the model; graphs without code generation, so that no compiler of C++ has to be there."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.corpus.networks import features
from sgoif_bench.loops.study import Study, Trained


def train(study: Study) -> Trained:
    """Cross-entropy."""
    torch.compiler.reset()  # a training that was compiled before, in the same process, has nothing to say here
    torch.manual_seed(study.seed)
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=32, shuffle=True, drop_last=True)

    model: Any = torch.compile(nn.Sequential(features(), nn.Linear(64, 10)), backend="aot_eager")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    monitor = study.monitor(model, optimizer, anchors=holdout_set)
    for _ in range(study.epochs):
        for x, y, index in loader:
            optimizer.zero_grad(set_to_none=True)
            with monitor.step(index):
                loss = F.cross_entropy(model(x), y)
                loss.backward()
            optimizer.step()
    return Trained(model, monitor)
