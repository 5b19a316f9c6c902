"""Scores: from what training steps left behind to values for the ledger.

Steps are collected and scored several at a time: on a GPU the cost of scoring is the number of operations, not their
size. The result does not depend on how many are taken together, since every step keeps its own scale.

    raw influence on group g    s_ig = −ψ_gᵀ g_i / s                   s: scale of the batch loss, positive = harmful
    raw influence               s_i  = Σ_g s_ig
    weighed                     u_i  = Σ_g max(s_ig, 0) + h min(s_ig, 0)     h = 1: the plain sum
    squashed                    x_i  = T tanh(u_i / T q)

q is the running mean size of u, so x is measured in typical influences of its own step. Why h = ½, and why scores are
squashed, is in docs/method.md. Everything stays on the device; nothing here waits for it.

A row of a mixture (mixup, cutmix) shows its own example by the share that its label counts in the target, so the
observation counts by that share: by how much of it is signal, the rest being an example drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from sgoif.core.objective import Columns, Objective
from sgoif.curvature.base import Factors
from sgoif.scoring.ledger import Ledger
from sgoif.scoring.running_means import TINY
from sgoif.scoring.score_scaling import ScoreScaling
from sgoif.solvers.base import row_norm

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
    share: Tensor | None = None
    """What the label counts in a mixture; None: all of it."""

    @classmethod
    def of(
        cls, index: Tensor, influence: Tensor, groups: Tensor, loss: Tensor, seen: Columns, share: Tensor | None = None
    ) -> Self:
        """From influences, losses, and what the outputs say of classes."""
        margins = seen.margin, seen.logit_margin
        return cls(index, influence, groups, *margins, loss, seen.label, seen.probabilities, share)

    def tail(self, count: int) -> StepScores:
        """A copy of the last `count` examples, which keeps nothing of the others."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(
            self, **{name: column[-count:].clone() for name, column in columns.items() if column is not None}
        )


def held_out_scores(
    positions: Tensor, groups: Tensor, losses: Tensor, logits: Tensor, targets: Tensor, objective: Objective
) -> StepScores:
    """Raw scores of held-out examples from their influences by group, in the form that `remember` takes."""
    return StepScores.of(positions, groups.sum(1), groups, losses, objective.columns(logits, targets))


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


def remember(
    ledger: Ledger,
    scaling: ScoreScaling,
    scores: StepScores,
    support: Tensor,
    weight: float,
    help_weight: float,
    error: Tensor | None = None,
    sizes: Sequence[int] | None = None,
) -> None:
    """Weigh and scale raw scores step by step, gate anomalies out, and fold the rest into a ledger.

    `support` [G] is the mean confidence behind each group's direction, `error` [R] a bound on the solver's error where
    there is one.
    """
    if error is None:
        error = torch.full_like(scores.loss, torch.inf)
    raw = scores.influence
    if help_weight < 1:
        raw = raw - (1 - help_weight) * scores.groups.clamp_max(0).sum(1)
    q = scaling.observe(raw, sizes or [len(raw)])
    squashed = scaling.apply(torch.cat([raw.unsqueeze(1), scores.groups], dim=1), q)
    size = scores.groups.abs()
    trust = (size @ support) / size.sum(1).clamp_min(TINY)
    bound = error if scaling.temperature is None else error / q
    valid = (raw + scores.loss) * 0 == 0  # false for infinite values and for those that are not numbers
    columns = [squashed[:, 0], trust, scores.margin, scores.logit_margin, scores.loss, bound]
    values = torch.stack(columns, dim=1)
    seen = scores.probabilities, scores.label, valid
    ledger.add(scores.index, values, squashed[:, 1:], *seen, weight, scores.share)
