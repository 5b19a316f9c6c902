"""One training run, watched by several monitors at once and by the simple signals, judged after every epoch.

Everything that is compared sees the same model, the same batches and the same random numbers, so a difference between
two rows of a result is a difference between two scores and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.monitor import InfluenceMonitor
from sgoif_bench.metrics import detection_metrics
from sgoif_bench.signals import SignalTracker

Epoch = dict[str, Any]


@dataclass
class Judge:
    """Knows which labels are wrong, and asks every score how well it finds them."""

    monitors: Mapping[str, InfluenceMonitor]
    tracker: SignalTracker
    true_labels: NDArray[np.int64]
    """Of the whole data set; `monitors` and `tracker` use positions in it as indices."""
    is_wrong: NDArray[np.bool_]
    train_index: NDArray[np.int64]
    """The examples that are trained on; the others are anchors."""

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Detection metrics of every score over the training examples."""
        suspicion = {name: self._influence(monitor, anchors=False) for name, monitor in self.monitors.items()}
        suspicion |= self.tracker.suspicion()
        wrong = self.is_wrong[self.train_index]
        return {name: detection_metrics(wrong, values[self.train_index]) for name, values in suspicion.items()}

    def report(self) -> dict[str, dict[str, Any]]:
        """What else is known about each monitor at the end of a run."""
        return {name: self._report(monitor) for name, monitor in self.monitors.items()}

    def _influence(self, monitor: InfluenceMonitor, *, anchors: bool) -> NDArray[np.float64]:
        table = monitor.scores(anchors=anchors)
        influence = np.full(len(self.is_wrong), -np.inf)
        influence[table["index"]] = np.nan_to_num(table["influence"].astype(np.float64), nan=-np.inf)
        return influence

    def _report(self, monitor: InfluenceMonitor) -> dict[str, Any]:
        table = monitor.scores(anchors=False)
        trained = np.isin(table["index"], self.train_index) & (table["n_observations"] > 0)
        wrong = trained & self.is_wrong[table["index"]]
        harmed_is_true = table["group"][wrong] == self.true_labels[table["index"]][wrong]
        held_out = np.setdiff1d(np.arange(len(self.is_wrong)), self.train_index)
        report: dict[str, Any] = {
            "group_is_true_class": float(np.mean(harmed_is_true)),
            "mean_confidence": float(np.nanmean(table["confidence"][trained])),
            "mean_observations": float(np.mean(table["n_observations"][trained])),
            "history": list(monitor.history),
        }
        if 0 < self.is_wrong[held_out].sum() < len(held_out):
            influence = self._influence(monitor, anchors=True)
            report["all_examples"] = detection_metrics(self.is_wrong, influence)
            report["anchors_only"] = detection_metrics(self.is_wrong[held_out], influence[held_out])
        return report


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    judge: Judge,
    epochs: int,
    *,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> list[Epoch]:
    """Train on (x, y, index) batches already on the model's device; one record per epoch."""
    records: list[Epoch] = []
    steps = 0
    for epoch in range(1, epochs + 1):
        model.train()
        start = time.perf_counter()
        seen, loss_sum, right = 0, torch.zeros(()), torch.zeros(())
        for x, y, index in batches:
            with ExitStack() as watching:
                for monitor in judge.monitors.values():
                    watching.enter_context(monitor.step(index))
                with autocast():
                    logits = model(x)
                    loss = F.cross_entropy(logits, y)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
            judge.tracker.update(logits, y, index)
            seen += len(y)
            loss_sum = loss_sum.to(loss.device) + loss.detach() * len(y)
            right = right.to(loss.device) + (logits.argmax(dim=1) == y).sum()
            steps += 1
        train_loss, accuracy = loss_sum.item() / seen, right.item() / seen
        seconds = time.perf_counter() - start
        record: Epoch = {
            "epoch": epoch,
            "steps": steps,
            "train_loss": train_loss,
            "train_accuracy": accuracy,
            "learning_rate": optimizer.param_groups[0]["lr"],
            "seconds": seconds,
            "methods": judge.metrics(),
        }
        records.append(record)
        if on_epoch is not None:
            on_epoch(record)
    return records
