"""What the training of one head on all examples shows: mean loss and area under the margin.

The head is the one of `sgoif audit`: two layers, 512 wide, on the 256 strongest principal components of the features,
trained for 20 epochs by SGD, one cycle, with a little noise on the features; it is trained on everything, where ours
holds out a part each time. With logits z and given label y of an example, as the steps of the training saw it,
averaged over the epochs,

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
from sgoif.audit.training import MOMENTUM, WEIGHT_DECAY, learning_rate
from sgoif_bench.pretrained.task import Outcome, Scores, Task
from sgoif_bench.signals import SignalTracker

HEAD = 10
"""Its random stream."""
COMPONENTS, HIDDEN, NOISE = 256, 512, 0.3
LEAST_BATCH, MOST_BATCH, STEPS_AN_EPOCH = 16, 128, 16
SIGNALS = {"head-aum": "margin", "head-loss": "loss"}


def head(task: Task) -> dict[str, Outcome]:
    """Both, from one training."""
    features = task.pictures.features.value
    start = time.perf_counter()
    inputs, recipe = principal(features), task.recipe
    suspicion = watched(inputs, task.given, task.classes, recipe.head_epochs, recipe.head_rate, task.seed)
    seconds = time.perf_counter() - start
    return {name: Outcome(suspicion[signal], seconds) for name, signal in SIGNALS.items()}


def principal(features: Tensor) -> Tensor:
    """The strongest principal components, of mean square 1 over all."""
    centred = features - features.mean(0)
    directions = torch.linalg.eigh((centred.T @ centred).double() / len(centred)).eigenvectors
    found: Tensor = centred @ directions[:, -COMPONENTS:].float()
    found /= found.square().mean().sqrt().clamp_min(1e-12)
    return found


def watched(inputs: Tensor, given: Tensor, classes: int, epochs: int, peak: float, seed: int) -> dict[str, Scores]:
    """Suspicion by every signal of a training on these features."""
    torch.manual_seed(stream(seed, HEAD, 0))
    model = nn.Sequential(nn.Linear(inputs.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes)).to(inputs.device)
    batch = min(MOST_BATCH, max(LEAST_BATCH, len(inputs) // STEPS_AN_EPOCH))
    parts = batches_per_epoch(len(inputs), batch)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=peak, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY
    )
    random = torch.Generator().manual_seed(stream(seed, HEAD, 1))
    signals = SignalTracker(len(inputs), inputs.device)
    for epoch in range(epochs):
        order = torch.randperm(len(inputs), generator=random).to(inputs.device)
        for step, index in enumerate(order.tensor_split(parts), start=epoch * parts):
            optimizer.param_groups[0]["lr"] = learning_rate(step, epochs * parts, peak)
            x = inputs[index]
            logits = model(x + NOISE * torch.randn(x.shape, generator=random).to(x.device))
            signals.update(logits, given[index], index)
            F.cross_entropy(logits, given[index]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return signals.suspicion()
