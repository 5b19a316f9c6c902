"""TracIn: whose training steps lowered the loss of the victims' wrong answers.

Garima Pruthi, Frederick Liu, Satyen Kale, Mukund Sundararajan: "Estimating Training Data Influence by Tracing Gradient
Descent", NeurIPS 2020. From checkpoints w_1 … w_k (their TracInCP), with η_t the step size between checkpoint t − 1 and
t, victims v with wrong answers w_v,

    tracin         suspicion = mean_v Σ_t η_t ∇ℓ(w_t, x_i, y_i) · ∇ℓ(w_t, x_v, w_v): proponents of the wrong answers
    tracin_self    suspicion = Σ_t η_t ‖∇ℓ(w_t, x_i, y_i)‖², where no victim is known

Gradients are those of the last linear layer, in closed form, at eight checkpoints, as in `bench.labels.rivals.tracin`.
There is no rule of its own for what to remove.
"""

from __future__ import annotations

import torch

from sgoif_bench.labels.rivals.influence_common import head_gradients, to_scores
from sgoif_bench.poisoning.case import Case, Finding


def tracin(case: Case) -> Finding:
    """Influence on the wrong answers of the victims, over the checkpoints."""
    victims, total = case.victim_problem(), _zeros(case)
    for rate, model in case.checkpoints.models(case.problem):
        wanted = head_gradients(victims, model).mean()
        total.add_(head_gradients(case.problem, model).dot(wanted).double(), alpha=rate)
    return Finding(to_scores(total), details={"checkpoints": case.checkpoints.rates})


def tracin_self(case: Case) -> Finding:
    """Self-influence over the checkpoints."""
    total = _zeros(case)
    for rate, model in case.checkpoints.models(case.problem):
        total.add_(head_gradients(case.problem, model).squared_norms().double(), alpha=rate)
    return Finding(to_scores(total), details={"checkpoints": case.checkpoints.rates})


def _zeros(case: Case) -> torch.Tensor:
    return torch.zeros(len(case.problem), dtype=torch.float64, device=case.problem.device)
