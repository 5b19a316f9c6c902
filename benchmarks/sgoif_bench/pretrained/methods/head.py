"""What the training of one head on all examples shows: mean loss and area under the margin.

The head is the one of `sgoif audit`: two layers on the 256 strongest principal components of the features,
trained for 20 epochs by SGD, one cycle, with a little noise on the features; it is trained on everything, where ours
holds out a part each time. With logits z and given label y of an example, as the steps of the training saw it,
averaged over the epochs,

    head-loss   −log softmax(z)_y
    head-aum    −(z_y − max_{k≠y} z_k)

The second is minus the AUM of Geoff Pleiss, Tianyi Zhang, Ethan Elenberg, Kilian Weinberger: "Identifying Mislabeled
Data using the Area Under the Margin Ranking", NeurIPS 2020. The authors take it before the learning rate first drops,
since a network then begins to know wrong labels by heart: `head-aum-early` and `head-loss-early` are means over the
steps up to there, the first fifth.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.audit.batches import batches_per_epoch, stream
from sgoif.audit.training import WARM_UP, learning_rate
from sgoif.features.reduced import principal
from sgoif.tasks.crossfit.head import MOMENTUM, NOISE, WEIGHT_DECAY, batch_size, make_head
from sgoif_bench.pretrained.task import Outcome, Scores, Task
from sgoif_bench.signals import SignalTracker

HEAD = 10
"""Its random stream."""
SIGNALS = {"head-aum": "margin", "head-loss": "loss"}
EARLY = "-early"


def head(task: Task) -> dict[str, Outcome]:
    """All of them, from one training."""
    features = task.pictures.features.value.cpu().numpy()
    start = time.perf_counter()
    inputs, recipe = principal(features).to(task.device), task.recipe
    early, whole = watched(inputs, task.given, task.classes, recipe.head_epochs, recipe.head_rate, task.seed)
    seconds = time.perf_counter() - start
    found = {name: whole[signal] for name, signal in SIGNALS.items()}
    found |= {name + EARLY: early[signal] for name, signal in SIGNALS.items()}
    return {name: Outcome(suspicion, seconds) for name, suspicion in found.items()}


Suspicion = dict[str, Scores]


def watched(
    inputs: Tensor, given: Tensor, classes: int, epochs: int, peak: float, seed: int
) -> tuple[Suspicion, Suspicion]:
    """Suspicion by every signal of a training on these features, until the rate drops and over the whole of it."""
    torch.manual_seed(stream(seed, HEAD, 0))
    model = make_head(inputs.shape[1], classes).to(inputs.device)
    parts = batches_per_epoch(len(inputs), batch_size(len(inputs)))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=peak, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY
    )
    random = torch.Generator().manual_seed(stream(seed, HEAD, 1))
    early, whole = (SignalTracker(len(inputs), inputs.device) for _ in range(2))
    rise = max(round(WARM_UP * epochs), 1)
    for epoch in range(epochs):
        order = torch.randperm(len(inputs), generator=random).to(inputs.device)
        for step, index in enumerate(order.tensor_split(parts), start=epoch * parts):
            optimizer.param_groups[0]["lr"] = learning_rate(step, epochs * parts, peak)
            x = inputs[index]
            logits = model(x + NOISE * torch.randn(x.shape, generator=random).to(x.device))
            whole.update(logits, given[index], index)
            if epoch < rise:
                early.update(logits, given[index], index)
            F.cross_entropy(logits, given[index]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return early.suspicion(), whole.suspicion()
