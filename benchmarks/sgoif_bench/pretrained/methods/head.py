"""What the training of one linear head on all features shows: mean loss and area under the margin.

With logits z and given label y of an example, as the steps of the training saw it, averaged over the epochs,

    head-loss   −log softmax(z)_y
    head-aum    −(z_y − max_{k≠y} z_k)

The second is minus the AUM of Geoff Pleiss, Tianyi Zhang, Ethan Elenberg, Kilian Weinberger: "Identifying Mislabeled
Data using the Area Under the Margin Ranking", NeurIPS 2020.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.audit.batches import batches_per_epoch, stream
from sgoif_bench.optimizers import make_optimizer
from sgoif_bench.pretrained.recipes import batch_size
from sgoif_bench.pretrained.task import Outcome, Scores, Task
from sgoif_bench.signals import SignalTracker

HEAD = 10
"""Its random stream."""


def head(task: Task) -> dict[str, Outcome]:
    """Both, from one training."""
    features = task.pictures.standardised
    start = time.perf_counter()
    suspicion = watched(features, task.given, task.classes, task.recipe.head_epochs, task.recipe.head_rate, task.seed)
    seconds = time.perf_counter() - start
    return {name: Outcome(suspicion[signal], seconds) for name, signal in SIGNALS.items()}


SIGNALS = {"head-aum": "margin", "head-loss": "loss"}


def watched(features: Tensor, given: Tensor, classes: int, epochs: int, rate: float, seed: int) -> dict[str, Scores]:
    """Suspicion by every signal of a training on these features."""
    torch.manual_seed(stream(seed, HEAD, 0))
    model = nn.Linear(features.shape[1], classes).to(features.device)
    parts = batches_per_epoch(len(features), batch_size(len(features)))
    optimizer, schedule = make_optimizer(model, epochs * parts, lr=rate)
    order = torch.Generator().manual_seed(stream(seed, HEAD, 1))
    signals = SignalTracker(len(features), features.device)
    for _ in range(epochs):
        for index in torch.randperm(len(features), generator=order).to(features.device).tensor_split(parts):
            logits = model(features[index])
            signals.update(logits, given[index], index)
            F.cross_entropy(logits, given[index]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return signals.suspicion()
