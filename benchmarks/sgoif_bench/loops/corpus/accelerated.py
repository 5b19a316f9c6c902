"""Accelerate: everything is prepared first, accumulation and clipping are the accelerator's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.corpus.networks import convnet
from sgoif_bench.loops.study import Study, Trained


def train(study: Study) -> Trained:
    """Two batches to a step, a schedule that is prepared as well."""
    torch.manual_seed(study.seed)
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=16, shuffle=True)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = convnet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, study.epochs * len(loader))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    monitor = study.monitor(model, optimizer, anchors=holdout_set)
    for _ in range(study.epochs):
        model.train()
        for x, y, index in loader:
            with accelerator.accumulate(model):
                with monitor.step(index):
                    loss = F.cross_entropy(model(x), y)
                    accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    return Trained(model, monitor)
