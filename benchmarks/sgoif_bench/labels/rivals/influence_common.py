"""What these methods share: a training that reports, gradients of the last layer, neighbours in feature space.

The last linear layer maps a ∈ ℝᴰ to logits z = W ã, with ã = [a, 1] where it has a bias. With p = softmax(z) and given
label y, the gradient of one example's cross-entropy with respect to W is an outer product and is never formed:

    g = δ ⊗ ã,    δ = p − e_y,    ‖g‖² = ‖δ‖² ‖ã‖²,    ⟨g, G⟩ = δᵀ G ã

A constant between this layer and the logits (ResNet-9 divides by 8) would multiply every gradient alike; it is left
out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sgoif.tasks.deviations import aligned
from sgoif_bench.batches import Batches
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Observe, Problem, Rows, Scores, last_linear

BLOCK = 1024


def train(
    problem: Problem,
    tell: Say,
    name: str,
    *,
    batches: Batches | None = None,
    observe: Observe | None = None,
    on_epoch: Callable[[nn.Module, int], None] | None = None,
    number: int = 0,
) -> nn.Module:
    """One training by the recipe, by default on everything, with one line per epoch under this name."""
    model = problem.new_model(number)

    def after(epoch: int) -> None:
        if on_epoch is not None:
            on_epoch(model, epoch)
        tell(f"{name}: epoch {epoch}/{problem.recipe.epochs}")

    return problem.fit(model, problem.batches() if batches is None else batches, on_step=observe, on_epoch=after)


@dataclass(frozen=True)
class HeadGradients:
    """Gradients of n examples with respect to the last layer, as factors."""

    inputs: Tensor
    """ã [n, D + 1], or [n, D] without a bias"""
    probabilities: Tensor
    """p [n, C]"""
    delta: Tensor
    """δ [n, C]"""

    def __len__(self) -> int:
        return len(self.delta)

    def take(self, rows: Tensor) -> HeadGradients:
        """Those of some examples."""
        return HeadGradients(self.inputs[rows], self.probabilities[rows], self.delta[rows])

    def squared_norms(self) -> Tensor:
        """‖g_i‖² [n]."""
        return self.delta.square().sum(1) * self.inputs.square().sum(1)

    def mean(self) -> Tensor:
        """Mean gradient [C, D + 1]."""
        return self.delta.T @ self.inputs / len(self)

    def dot(self, direction: Tensor) -> Tensor:
        """⟨g_i, G⟩ [n] for one direction G [C, D + 1]."""
        return ((self.inputs @ direction.T) * self.delta).sum(1)

    def dense(self) -> Tensor:
        """The gradients themselves, [n, C, D + 1]; for a few examples at a time."""
        return self.delta[:, :, None] * self.inputs[:, None, :]


@torch.no_grad()
def head_gradients(problem: Problem, model: nn.Module) -> HeadGradients:
    """Every example's gradient at the model as it is, in evaluation mode and without augmentation, in one pass."""
    head = last_linear(model)
    kept: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0].detach().float()))
    try:
        logits = problem.predict(model)
    finally:
        handle.remove()
    inputs = torch.cat(kept)
    if head.bias is not None:
        inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
    probabilities = logits.softmax(1)
    given = torch.from_numpy(problem.labels).to(problem.device)[:, None]
    # p_y − 1 as minus the sum of the others: for a well-fitted example the difference itself would be rounding error.
    others = probabilities.scatter(1, given, 0.0)
    delta = others.scatter(1, given, -others.sum(1, keepdim=True))
    return HeadGradients(inputs, probabilities, delta)


@torch.no_grad()
def nearest(queries: Tensor, keys: Tensor, count: int, own: Tensor, block: int = BLOCK) -> tuple[Tensor, Tensor]:
    """Squared distances and rows [Q, count] of the keys nearest to each query, nearest first.

    `own[q]` is the key that is query q itself, and is left out. Memory is that of block × keys.
    """
    norms = keys.square().sum(1)
    squared, rows = [], []
    for some, self_ in zip(queries.split(block), own.to(keys.device).split(block), strict=True):
        distance = torch.addmm(norms[None, :] + some.square().sum(1, keepdim=True), some, keys.T, alpha=-2.0)
        distance.clamp_min_(0).scatter_(1, self_[:, None], torch.inf)
        found = distance.topk(count, dim=1, largest=False)
        squared.append(found.values)
        rows.append(found.indices)
    return torch.cat(squared), torch.cat(rows)


def on_one_scale(suspicion: Scores, held_out: Rows) -> Scores:
    """Held-out examples moved to the place that they have among themselves, among the trained ones.

    A gradient of an example that was never fitted is larger whatever its label; as they are, all held-out examples
    would come first.
    """
    trained = np.setdiff1d(np.arange(len(suspicion)), held_out)
    moved = suspicion.copy()
    moved[held_out] = aligned(suspicion[held_out], suspicion[held_out], suspicion[trained])
    return moved


def to_scores(values: Tensor) -> Scores:
    """A tensor as the scores of an outcome."""
    return values.detach().cpu().numpy().astype(np.float64)
