"""What a removal does to held-out examples: to their losses, probabilities and predictions, with an interval.

A head w̃ without the deleted examples and the bound r on its distance from the retrained head w* (`removal`) give for
every query v with ρ = r ‖ã_v‖ and q = p̃ − e_y

    −‖q‖ ρ  ≤  ℓ_v(w*) − ℓ_v(w̃)  ≤  ‖q‖ ρ + ¼ ρ²,      and never more than √2 ρ either way,

since ℓ is convex in the logits with a curvature of at most ½; for the mean loss Q over the queries likewise

    −‖∇Q‖ r  ≤  Q(w*) − Q(w̃)  ≤  ‖∇Q‖ r + ¼ r² mean ‖ã‖².

A prediction is certain where the two logits in question lie more than √2 ρ apart. These intervals say what retraining
the head would give on these very queries. What it would do to other data of the same kind is a question of sampling;
`population` is the usual normal interval for that, widened by r.

For all examples at once there is the first order alone, one inner product an example:

    ψ = (∇²L)⁻¹ ∇Q,      ΔQ_i ≈ ψᵀ (∇ℓ_i + λ w − n ∇L) / (n − 1)
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sgoif.tasks.unlearning.head import HeadData, Objective, residuals
from sgoif.tasks.unlearning.newton import FittedHead

LEVEL = 0.9
"""Of the interval for other data."""
ROOT2 = math.sqrt(2)


@dataclass(frozen=True)
class Effect:
    """What a removal does on average; losses are means over the queries."""

    queries: int
    loss: float
    """Before the removal."""
    change: float
    """Loss after it minus loss before."""
    low: float
    """Retraining the head changes the loss of these queries by at least this,"""
    high: float
    """and at most this."""
    population_low: float
    """With 90% confidence, the change on other data of the same kind is at least this,"""
    population_high: float
    """and at most this."""
    flips: int
    """Predictions that change."""
    certain_flips: int
    """Those of them that change for the retrained head too."""
    undecided: int
    """Predictions too close to call for the certificate."""
    largest_shift: float
    """Most probability that one query's prediction moves from some classes to others."""

    @property
    def largest_change(self) -> float:
        """Largest change of the mean loss, either way, that the certificate leaves open."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True)
class QueryEffects:
    """The same query by query; every field is [q] unless it says otherwise."""

    labels: Tensor
    loss_before: Tensor
    loss_after: Tensor
    low: Tensor
    """Retraining the head changes the loss by at least this,"""
    high: Tensor
    """and at most this."""
    probabilities_before: Tensor
    """[q, C]"""
    probabilities_after: Tensor
    predicted_before: Tensor
    predicted_after: Tensor
    certain: Tensor
    """Whether the retrained head is sure to predict as this one does, as far as the old prediction goes."""
    mean_low: float
    mean_high: float

    @property
    def change(self) -> Tensor:
        return self.loss_after - self.loss_before

    @property
    def flipped(self) -> Tensor:
        return self.predicted_after != self.predicted_before

    def summary(self) -> Effect:
        """The effect on average."""
        count = len(self.labels)
        change = float(self.change.mean())
        spread = float(self.change.std(correction=1)) / math.sqrt(count) if count > 1 else math.inf
        room = NormalDist().inv_cdf(0.5 + LEVEL / 2) * spread
        shift = 0.5 * (self.probabilities_after - self.probabilities_before).abs().sum(1)
        return Effect(
            queries=count,
            loss=float(self.loss_before.mean()),
            change=change,
            low=self.mean_low,
            high=self.mean_high,
            population_low=self.mean_low - room,
            population_high=self.mean_high + room,
            flips=int(self.flipped.sum()),
            certain_flips=int((self.flipped & self.certain).sum()),
            undecided=int((~self.certain).sum()),
            largest_shift=float(shift.max()),
        )


def query_effects(queries: HeadData, before: Tensor, after: Tensor, bound: float) -> QueryEffects:
    """What replacing one head by another does to the queries, and what retraining can do, given the bound."""
    old, new, norms = queries.logits(before), queries.logits(after), queries.norms()
    labels = queries.labels
    loss_before, loss_after = (cross_entropy(logits, labels, reduction="none") for logits in (old, new))
    reach = bound * norms
    slope = torch.linalg.vector_norm(residuals(new, labels), dim=1) * reach
    most = ROOT2 * reach
    change = loss_after - loss_before

    mean = Objective(queries, 1.0).value_and_gradient(after)[1] - after  # the penalty's part taken off again
    along = float(torch.linalg.vector_norm(mean)) * bound
    curved = 0.25 * bound**2 * float(norms.square().mean())
    average, limit = float(change.mean()), float(most.mean())

    was, now = old.argmax(1), new.argmax(1)
    rows = torch.arange(len(labels), device=labels.device)
    others = new.clone()
    others[rows, was] = -math.inf
    # How far the old prediction is ahead of, or behind, the best other class.
    ahead = (new[rows, was] - others.max(1).values).abs()
    return QueryEffects(
        labels=labels,
        loss_before=loss_before,
        loss_after=loss_after,
        low=change - torch.minimum(slope, most),
        high=change + torch.minimum(slope + 0.25 * reach.square(), most),
        probabilities_before=torch.softmax(old, 1),
        probabilities_after=torch.softmax(new, 1),
        predicted_before=was,
        predicted_after=now,
        certain=ahead > ROOT2 * reach,
        mean_low=average - min(along, limit),
        mean_high=average + min(along + curved, limit),
    )


def first_order_influence(fitted: FittedHead, queries: HeadData) -> Tensor:
    """Predicted change of the mean loss of the queries when each example alone is deleted, [n]."""
    objective, w = fitted.objective, fitted.w
    mean = Objective(queries, 1.0).gradient(w) - w
    psi = fitted.solve(mean[None])[0]
    shared = float(psi @ (objective.l2 * w - objective.size * fitted.gradient))
    return (objective.slopes(w, psi) + shared) / (objective.size - 1)
