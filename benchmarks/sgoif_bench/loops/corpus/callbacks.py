"""A little trainer with hooks around every batch, as skorch and fastai have them; the monitor is one more callback."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.corpus.networks import convnet
from sgoif_bench.loops.study import Study, Trained, Watching


class Callback:
    """Called by the learner; what is not of interest is left out."""

    def on_batch_begin(self, learner: Learner, batch: Any) -> None: ...

    def on_grad_computed(self, learner: Learner) -> None: ...

    def on_batch_end(self, learner: Learner) -> None: ...

    def on_epoch_end(self, learner: Learner) -> None: ...


class Learner:
    """Model, data, optimizer and callbacks."""

    def __init__(
        self, model: nn.Module, loader: DataLoader[Any], optimizer: torch.optim.Optimizer, callbacks: Sequence[Callback]
    ) -> None:
        self.model, self.loader, self.optimizer, self.callbacks = model, loader, optimizer, callbacks
        self.loss_func = nn.CrossEntropyLoss()
        self.loss: Tensor | None = None

    def notify(self, event: str, *arguments: Any) -> None:
        """Call every callback."""
        for callback in self.callbacks:
            getattr(callback, event)(self, *arguments)

    def fit(self, epochs: int) -> None:
        """Train."""
        for _ in range(epochs):
            self.model.train()
            for batch in self.loader:
                self.notify("on_batch_begin", batch)
                self.optimizer.zero_grad()
                self.loss = self.loss_func(self.model(batch[0]), batch[1])
                self.loss.backward()
                self.notify("on_grad_computed")
                self.optimizer.step()
                self.notify("on_batch_end")
            self.notify("on_epoch_end")


class History(Callback):
    """Keeps the losses."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_batch_end(self, learner: Learner) -> None:
        assert learner.loss is not None
        self.losses.append(learner.loss.item())


class Influence(Callback):
    """Opens a step when a batch begins, and leaves it when the gradients are there."""

    def __init__(self, monitor: Watching) -> None:
        self.monitor, self.step = monitor, ExitStack()

    def on_batch_begin(self, learner: Learner, batch: Any) -> None:
        self.step.enter_context(self.monitor.step(batch[-1]))

    def on_grad_computed(self, learner: Learner) -> None:
        self.step.close()


def train(study: Study) -> Trained:
    """Cross-entropy, Adam."""
    torch.manual_seed(study.seed)
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=32, shuffle=True)

    model = convnet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    monitor = study.monitor(model, optimizer, anchors=holdout_set)
    Learner(model, loader, optimizer, [History(), Influence(monitor)]).fit(study.epochs)
    return Trained(model, monitor)
