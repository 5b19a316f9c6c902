"""Mixup: training on straight lines between examples, which makes a wrong label hard to learn by heart.

Zhang, Cissé, Dauphin, Lopez-Paz: mixup: Beyond Empirical Risk Minimization. ICLR 2018.

For a batch (x_i, y_i), a random permutation π of it and one λ ~ Beta(α, α),

    x̃_i = λ x_i + (1 − λ) x_π(i)
    L = mean_i  λ CE(f(x̃_i), y_i) + (1 − λ) CE(f(x̃_i), y_π(i))

The experiments of the paper on corrupted labels use a strong mix, α = 8 or α = 32, where λ stays near ½; we take α = 8
for every data set and noise rate.

Score. Mixup has no detector and no threshold of its own. What it gives is a network that withstands wrong labels, so
suspicion is that network's cross entropy with the given label on the unmixed image, in evaluation mode, averaged over
the last quarter of the epochs. Cost: one training.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem
from sgoif_bench.labels.rivals.common import LateLosses, numpy_stream, torch_stream

ALPHA = 8.0
"""Both parameters of the Beta distribution that λ is drawn from."""
_LAMBDA_STREAM, _PARTNER_STREAM = 101, 102


def mix(x: Tensor, partner: Tensor, share: float) -> Tensor:
    """λ x_i + (1 − λ) x_π(i) with λ = `share` and π = `partner`."""
    return share * x + (1 - share) * x[partner]


def mixed_loss(logits: Tensor, labels: Tensor, partner: Tensor, share: float) -> Tensor:
    """Cross entropy with both labels of each mixed example, weighted as the images were mixed."""
    return share * F.cross_entropy(logits, labels) + (1 - share) * F.cross_entropy(logits, labels[partner])


def train(problem: Problem, on_epoch: Callable[[nn.Module, int], None]) -> nn.Module:
    """Train with mixup; `on_epoch` sees the network after every epoch, from 1."""
    model, batches, epochs = problem.new_model(), problem.batches(), problem.recipe.epochs
    optimizer, schedule = problem.optimizer(model, epochs * len(batches))
    shares, partners = numpy_stream(problem, _LAMBDA_STREAM), torch_stream(problem, _PARTNER_STREAM)
    for epoch in range(1, epochs + 1):
        model.train()
        for x, y, _ in batches:
            share = float(shares.beta(ALPHA, ALPHA))
            partner = torch.randperm(len(y), generator=partners, device=problem.device)
            with problem.autocast():
                logits = model(mix(x, partner, share))
            mixed_loss(logits.float(), y, partner, share).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        on_epoch(model, epoch)
    return model


def mixup(problem: Problem, tell: Say) -> Outcome:
    """Train with mixup; suspicion is the late cross entropy of the given label."""
    late = LateLosses(problem, tell, "mixup")
    train(problem, late.end_of_epoch)
    return Outcome(late.result(), trainings=1.0, details={"alpha": ALPHA})
