"""FastIF: influence functions on neighbours only, with a cheap inverse-Hessian-vector product.

Han Guo, Nazneen Rajani, Peter Hase, Mohit Bansal, Caiming Xiong: "FastIF: Scalable Influence Functions for Efficient
Model Interpretation and Debugging", EMNLP 2021. For an anchor v and a training example z,

    I(z, v) = −∇ℓ(v)ᵀ H⁻¹ ∇ℓ(z)          > 0: more weight on z would raise the loss of v, so z is harmful to v

with their three savings:

1. I(z, v) is computed for the k nearest neighbours z of v in feature space only (Euclidean, as theirs), and is 0 for
   the rest. k = 1,000 as theirs, at most a tenth of the data.
2. H⁻¹∇ℓ(v) by LiSSA with single examples and few recursions: for a random batch b of training examples
       h_0 = ∇ℓ(v),    h_{j+1} = ∇ℓ(v) + (1 − λ) h_j − H_b h_j / σ,    H⁻¹∇ℓ(v) ≈ h_J / σ
   whose mean tends to (H + λσI)⁻¹∇ℓ(v). Batch 1, J = 1,000 and λ = 0.005 are their values.
3. T = 4 independent repetitions are averaged; theirs run on four devices. Here all anchors go through the recursion
   together and so share the batches.

σ was tuned by hand there (10⁴ for BERT). Here it is the smallest that makes every step a contraction for sure: the
largest of ‖ã_i‖² min(½, 1 − Σp_i²), a bound on the eigenvalues of one example's Hessian.

Weights are those of the last linear layer and H the Hessian of the mean training loss there, whose product with a
vector is closed-form: (H_b V) = mean_i (diag p_i − p_i p_iᵀ) V ã_i ã_iᵀ.

The paper ranks training examples for one v at a time; what many anchors say together is left to its user:

`fastif`       suspicion = mean over anchors of I(z, v) / ‖I(·, v)‖, the norm being over the candidates of v: each
               anchor has one voice. One whose own label is wrong has a far larger gradient than the others and would
               else shout them all down.
`fastif_sum`   suspicion = mean over anchors of I(z, v) as it stands.

Never retrieved means 0, no harm and no help. The held-out anchors are candidates for one another, so that every example
has a score. There is no threshold of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem, Rows, Scores
from sgoif_bench.labels.rivals.influence_common import (
    HeadGradients,
    head_gradients,
    nearest,
    on_one_scale,
    to_scores,
    train,
)

NEIGHBOURS = 1000
LARGEST_SHARE = 0.1
DAMPING = 0.005
RECURSIONS = 1000
BATCH = 1
REPETITIONS = 4
ANCHORS_AT_ONCE = 16


@dataclass(frozen=True)
class Pairs:
    """Influence of each anchor's candidates on its loss."""

    candidates: Rows
    """Rows [A, k]"""
    harm: Scores
    """I(z, v) [A, k]"""
    details: dict[str, Any]


def fastif(problem: Problem, tell: Say) -> Outcome:
    """Mean harm to the held-out anchors that have the example as a neighbour, each anchor having one voice."""
    pairs = influences(problem, tell)
    norms = np.linalg.norm(pairs.harm, axis=1, keepdims=True)
    return _outcome(problem, pairs, pairs.harm / np.maximum(norms, np.finfo(np.float64).tiny))


def fastif_sum(problem: Problem, tell: Say) -> Outcome:
    """Mean harm to the held-out anchors that have the example as a neighbour."""
    pairs = influences(problem, tell)
    return _outcome(problem, pairs, pairs.harm)


def influences(problem: Problem, tell: Say) -> Pairs:
    """Train without the anchors and compute I(z, v) for every anchor and its neighbours."""
    training, held_out = problem.split()
    rows = np.asarray(training.indices)
    gradients = head_gradients(problem, train(problem, tell, "FastIF", batches=problem.batches(rows)))
    anchors = torch.tensor(held_out.indices, device=problem.device)

    tell("FastIF: neighbours of the anchors")
    count = neighbour_count(len(problem))
    _, candidates = nearest(gradients.inputs[anchors], gradients.inputs, count, own=anchors)

    fitted = gradients.take(torch.from_numpy(rows).to(problem.device))
    scale = contraction_scale(fitted)
    generator = torch.Generator().manual_seed(problem.seed)
    right_side = gradients.take(anchors).dense()
    solved = torch.zeros_like(right_side)
    for repetition in range(1, REPETITIONS + 1):
        solved += lissa(right_side, fitted, scale, generator) / REPETITIONS
        tell(f"FastIF: inverse-Hessian-vector products, repetition {repetition}/{REPETITIONS}")
    harm = influence_of_candidates(solved, gradients, candidates)
    details = {"neighbours": count, "scale": scale, "damping": DAMPING * scale}
    return Pairs(candidates.cpu().numpy(), to_scores(harm), details)


def _outcome(problem: Problem, pairs: Pairs, voices: Scores) -> Outcome:
    """Suspicion as the mean over anchors of what each says of its candidates."""
    where, anchors = pairs.candidates.ravel(), len(pairs.candidates)
    # Summed on the CPU: additions in no fixed order, as on a GPU, would not repeat.
    harm = np.bincount(where, voices.ravel(), len(problem)) / anchors
    suspicion = on_one_scale(harm, np.asarray(problem.split()[1].indices))
    unseen = int((np.bincount(where, minlength=len(problem)) == 0).sum())
    return Outcome(
        suspicion,
        trainings=1 - anchors / len(problem),
        details={**pairs.details, "never_retrieved": unseen},
    )


def neighbour_count(size: int) -> int:
    """k."""
    return max(1, min(NEIGHBOURS, int(LARGEST_SHARE * size)))


def contraction_scale(gradients: HeadGradients) -> float:
    """σ, an upper bound on the largest eigenvalue of any single example's Hessian."""
    spread = (1 - gradients.probabilities.square().sum(1)).clamp(max=0.5)
    return max(float((spread * gradients.inputs.square().sum(1)).max()), torch.finfo(torch.float32).tiny)


@torch.no_grad()
def lissa(
    right_side: Tensor,
    gradients: HeadGradients,
    scale: float,
    generator: torch.Generator,
    *,
    damping: float = DAMPING,
    recursions: int = RECURSIONS,
    batch: int = BATCH,
) -> Tensor:
    """One repetition of the recursion for right-hand sides [A, C, D + 1]: an estimate of (H + λσI)⁻¹ of each.

    `batch` = 0 takes all examples in every step.
    """
    anchors, classes, width = right_side.shape
    constant = right_side.reshape(anchors * classes, width)
    state = constant.clone()
    everything = torch.arange(len(gradients)).expand(recursions, -1)
    drawn = torch.randint(len(gradients), (recursions, batch), generator=generator) if batch else everything
    for rows in drawn.to(right_side.device):
        p, inputs = gradients.probabilities[rows], gradients.inputs[rows]
        change = (state @ inputs.T).view(anchors, classes, len(rows)) * p.T
        curved = change - p.T * change.sum(1, keepdim=True)
        state.addmm_(curved.reshape(len(state), len(rows)), inputs, beta=1 - damping, alpha=-1 / (scale * len(rows)))
        state += constant
    return state.view_as(right_side) / scale


@torch.no_grad()
def influence_of_candidates(solved: Tensor, gradients: HeadGradients, candidates: Tensor) -> Tensor:
    """−⟨solved_v, g_z⟩ [A, k] for each anchor v and its candidates z."""
    parts = []
    for directions, rows in zip(solved.split(ANCHORS_AT_ONCE), candidates.split(ANCHORS_AT_ONCE), strict=True):
        pushed = gradients.inputs[rows] @ directions.mT
        parts.append(-(pushed * gradients.delta[rows]).sum(2))
    return torch.cat(parts)
