"""Scores: from what training steps left behind to values for the ledger.

Steps are collected and scored several at a time: on a GPU the cost of scoring is the number of operations, not their
size. The result does not depend on how many are taken together, since every step keeps its own scale.

    raw influence on group g    s_ig = −ψ_gᵀ g_i / s                   s: scale of the batch loss, positive = harmful
    raw influence               s_i  = Σ_g s_ig
    weighed                     u_i  = Σ_g max(s_ig, 0) + h min(s_ig, 0)     h = 1: the plain sum
    squashed                    x_i  = T tanh(u_i / T q)

An example that harms one class and helps its own is harmful, so help counts less than harm (h = ½). q is the running
mean size of u, so x is measured in typical influences of its own step and no single step can dominate an average.
Everything stays on the device; nothing here waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.core.losses import Loss, cross_entropy, gradient_of, read_labels_off
from sgoif.curvature.base import Factors
from sgoif.distributed.communicator import ALONE, Ranks
from sgoif.scoring.ledger import TINY, Ledger
from sgoif.solvers.base import row_norm
from sgoif.stability.running_mean import finite_or_zero

SCALE_DECAY = 0.9
SETTLED = 200
"""Steps after which the correction for a short history is one in single precision."""
RESPONSE_ENTRIES = 2**24
"""Largest intermediate result of scoring, in numbers (64 MiB)."""


@dataclass
class StepScores:
    """Raw scores of one or more steps; `monitor.last` shows those of the last one."""

    index: Tensor
    influence: Tensor
    """[B], in units of loss per unit of up-weighting; positive = harmful."""
    groups: Tensor
    """[B, G], the watched head's share of it by group."""
    margin: Tensor
    logit_margin: Tensor
    loss: Tensor
    label: Tensor
    probabilities: Tensor
    """[B, C], the softmax of the logits."""

    def tail(self, count: int) -> StepScores:
        """A copy of the last `count` examples; later steps may be scored in the same place."""
        return StepScores(*(getattr(self, f.name)[-count:].clone() for f in fields(self)))


def alike(sizes: Sequence[int]) -> bool:
    """Whether all steps have the same number of examples."""
    return min(sizes) == max(sizes)


def per_step(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """Sum of the values [R] of each step, [M]; the order of summation never varies."""
    if alike(sizes):
        return values.view(len(sizes), -1).sum(1)
    return torch.stack([part.sum() for part in values.split(list(sizes))])


def for_examples(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """The value of each step [M] for all of its examples, [R]."""
    if alike(sizes):
        return values.repeat_interleave(sizes[0])
    return torch.cat([value.expand(size) for value, size in zip(values.unbind(), sizes, strict=True)])


@dataclass
class Outputs:
    """What the logits say: labels, margins, losses, and the scale of the batch loss each example was part of."""

    label: Tensor
    rival: Tensor
    margin: Tensor
    logit_margin: Tensor
    loss: Tensor
    scale: Tensor
    probabilities: Tensor


def read_outputs(
    logits: Tensor, delta: Tensor | None, target: Tensor | None, loss: Loss, reduction: str, sizes: Sequence[int]
) -> Outputs:
    """Margins and losses of one or more steps, labels read off the gradient when no target is given."""
    z = logits.float()
    if target is None:
        assert delta is not None
        label = read_labels_off(delta, z)
    else:
        label = target
    column = label.unsqueeze(1)
    best, rival = z.scatter(1, column, float("-inf")).max(dim=1, keepdim=True)
    logarithms = torch.log_softmax(z, dim=1)
    probabilities = logarithms.exp()
    given = probabilities.gather(1, column)
    if reduction == "auto" and delta is not None:
        if loss is cross_entropy:
            # The probabilities, less one at the label. A model may answer with their logarithms; what moves all logits
            # alike, which changes no probability, is in the gradient of those alone.
            exact = probabilities.scatter(1, column, given - 1)
            delta = delta - probabilities * delta.sum(1, keepdim=True, dtype=torch.float32)
        else:
            exact = gradient_of(loss, z, label)
        scale = scales_of(delta, exact, sizes)
    else:
        scale = torch.tensor([1.0 / n if reduction == "mean" else 1.0 for n in sizes], device=z.device)
    own = -logarithms.gather(1, column).squeeze(1) if loss is cross_entropy else loss(z, label).float()
    return Outputs(
        label=label,
        rival=rival.squeeze(1),
        margin=(given - probabilities.gather(1, rival)).squeeze(1),
        logit_margin=(z.gather(1, column) - best).squeeze(1),
        loss=own,
        scale=for_examples(scale, sizes),
        probabilities=probabilities,
    )


def held_out_scores(
    positions: Tensor, groups: Tensor, losses: Tensor, logits: Tensor, labels: Tensor, loss: Loss
) -> StepScores:
    """Raw scores of held-out examples from their influences by group, in the form that `remember` takes."""
    outputs = read_outputs(logits, None, labels, loss, "sum", [len(logits)])
    margins = outputs.margin, outputs.logit_margin
    return StepScores(positions, groups.sum(1), groups, *margins, losses, labels, outputs.probabilities)


def scales_of(delta: Tensor, reference: Tensor, sizes: Sequence[int]) -> Tensor:
    """s in δ ≈ s · reference for every step, [M]: 1/B for a mean, 1 for a sum, times what the loss was multiplied with.

    Loss scaling, gradient accumulation and reductions all multiply the loss; dividing by s undoes them. A batch that
    is fitted perfectly says nothing, so it gets 1/B. Stays on the device.
    """
    along = (delta * reference).sum(1, dtype=torch.float32)
    power = (reference * reference).sum(1)
    sound = along * 0 == 0  # where a loss scaler overflows, the scale is read off the other examples
    s = finite_or_zero(per_step(finite_or_zero(along), sizes) / per_step(power * sound, sizes))
    mean: float | Tensor = 1.0 / sizes[0]
    if not alike(sizes):
        mean = torch.tensor([1.0 / size for size in sizes]).to(delta.device, non_blocking=True)
    return torch.where(s > 0, s, mean)


def group_scores(factors: Factors, directions: Tensor) -> Tensor:
    """ψ_gᵀ g_i for directions [G, rows, cols] of one layer, [B, G], summed over the positions of an example."""
    if factors.elementwise:
        return factors.gradient().flatten(1) @ directions.flatten(1).T
    groups, rows, cols = directions.shape
    weights = directions.reshape(groups * rows, cols).T
    positions = factors.delta.shape[1]
    some = max(1, RESPONSE_ENTRIES // (groups * rows * positions))  # with many classes the responses are large
    scores = []
    for a, d in zip(factors.inputs.split(some), factors.delta.split(some), strict=True):
        response = (a.flatten(0, 1) @ weights).reshape(-1, groups, rows)
        found = torch.bmm(response, d.reshape(-1, rows, 1)).squeeze(-1)
        scores.append(found.reshape(-1, positions, groups).sum(1) if positions > 1 else found)
    return scores[0] if len(scores) == 1 else torch.cat(scores)


def gradient_norms(factors: Factors) -> Tensor:
    """‖g_i‖ of one layer's block, [B].

    ‖Σ_t δ_t ⊗ a_t‖² = Σ_{t,u} (δ_t·δ_u)(a_t·a_u), so the gradient is formed only where that is smaller than the table
    of all pairs of positions.
    """
    positions, rows = factors.delta.shape[1:]
    if positions == 1 and not factors.elementwise:
        return row_norm(factors.inputs[:, 0]) * row_norm(factors.delta[:, 0])
    if factors.elementwise or positions**2 > rows * factors.inputs.shape[-1]:
        return row_norm(factors.gradient().flatten(1))
    pairs = (factors.delta @ factors.delta.mT) * (factors.inputs @ factors.inputs.mT)
    return pairs.sum((1, 2)).clamp_min(0).sqrt()


class Squash:
    """Running scale q and the squashing of one step's scores."""

    def __init__(self, temperature: float | None, device: torch.device, ranks: Ranks = ALONE) -> None:
        self.temperature = temperature
        self._ranks = ranks
        self.mean = torch.zeros((), device=device)
        self.updates = 0
        self._mixings: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def bound(self) -> float:
        """Largest size of a squashed score."""
        return self.temperature if self.temperature is not None else float("inf")

    def observe(self, raw: Tensor, sizes: Sequence[int]) -> Tensor:
        """Fold steps in, one after the other, and return q of the step for every example, [R]."""
        summed = per_step(torch.nan_to_num(raw, posinf=0, neginf=0).abs(), sizes)
        if self._ranks.size == 1 and alike(sizes):
            size = summed / sizes[0]
        else:
            counts = torch.tensor(sizes, dtype=torch.float32).to(raw.device, non_blocking=True)
            size = torch.div(*self._ranks.total(torch.stack([summed, counts])).unbind())
        old, new = self._mixing(len(sizes))
        means = new @ size + old * self.mean
        if self.updates < SETTLED:
            unbiased = 1 - SCALE_DECAY ** (self.updates + np.arange(1, len(sizes) + 1))
            q = means / torch.from_numpy(unbiased.astype(np.float32)).to(raw.device, non_blocking=True)
        else:
            q = means
        self.mean = means[-1]
        self.updates += len(sizes)
        return for_examples(q.clamp_min(TINY), sizes)

    def _mixing(self, steps: int) -> tuple[Tensor, Tensor]:
        """What the old mean [M] and the sizes of steps 0 … t [M, M] count for in the mean after step t, in row t."""
        if steps not in self._mixings:
            lag = np.subtract.outer(np.arange(steps), np.arange(steps))
            weights = np.where(lag >= 0, (1 - SCALE_DECAY) * SCALE_DECAY ** np.maximum(lag, 0), 0)
            old = SCALE_DECAY ** np.arange(1, steps + 1)
            tables = (torch.from_numpy(table.astype(np.float32)).to(self.mean.device) for table in (old, weights))
            self._mixings[steps] = next(tables), next(tables)
        return self._mixings[steps]

    def apply(self, raw: Tensor, q: Tensor) -> Tensor:
        """Scores [R, ...] in units of q [R], bent towards ±T."""
        if self.temperature is None:
            return raw
        return self.temperature * torch.tanh(raw / (self.temperature * q.view(-1, *[1] * (raw.dim() - 1))))

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"].to(self.mean.device).clone()
        self.updates = int(state["updates"])


def remember(
    ledger: Ledger,
    squash: Squash,
    scores: StepScores,
    support: Tensor,
    weight: float,
    help_weight: float,
    error: Tensor | None = None,
    sizes: Sequence[int] | None = None,
) -> None:
    """Weigh and squash raw scores step by step, gate anomalies out, and fold the rest into a ledger.

    `support` [G] is the mean confidence behind each group's direction, `error` [R] a bound on the solver's error where
    there is one.
    """
    if error is None:
        error = torch.full_like(scores.loss, torch.inf)
    raw = scores.influence
    if help_weight < 1:
        raw = raw - (1 - help_weight) * scores.groups.clamp_max(0).sum(1)
    q = squash.observe(raw, sizes or [len(raw)])
    squashed = squash.apply(torch.cat([raw.unsqueeze(1), scores.groups], dim=1), q)
    size = scores.groups.abs()
    trust = (size @ support) / size.sum(1).clamp_min(TINY)
    bound = error if squash.temperature is None else error / q
    valid = (raw + scores.loss) * 0 == 0  # false for infinite values and for those that are not numbers
    columns = [squashed[:, 0], trust, scores.margin, scores.logit_margin, scores.loss, bound]
    values = torch.stack(columns, dim=1)
    ledger.add(scores.index, values, squashed[:, 1:], scores.probabilities, scores.label, valid, weight)
