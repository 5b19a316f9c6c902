"""Self-influence: how much an example's own loss would rise if it were left out.

Pang Wei Koh and Percy Liang: "Understanding Black-box Predictions via Influence Functions", ICML 2017. At the end of
training,

    I(z, z) = ∇ℓ(z)ᵀ (H + λI)⁻¹ ∇ℓ(z)

They show the examples with the largest self-influence first to somebody who checks labels; suspicion is that number.
There is no threshold of its own.

Weights are those of the last linear layer, whose loss is convex, so that H, the Hessian of the mean training loss, is
also its Gauss–Newton matrix and positive semidefinite:

    exact      H = mean_i S_i ⊗ ã_i ã_iᵀ,    S_i = diag p_i − p_i p_iᵀ       up to 6,000 weights (10 classes × 513)
    Kronecker  H ≈ S ⊗ A = mean_i S_i ⊗ mean_i ã_i ã_iᵀ                      beyond; the damping is still exact

λ = 0.1 × the mean eigenvalue of H. They add a λ by hand; a relative one does not depend on how sure the network is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem
from sgoif_bench.labels.rivals.influence_common import HeadGradients, head_gradients, to_scores, train

DAMPING = 0.1
EXACT_UP_TO = 6000
CHUNK = 1000


def self_influence(problem: Problem, tell: Say) -> Outcome:
    """Self-influence of every example on the last layer of the trained network."""
    return self_influence_of(head_gradients(problem, train(problem, tell, "self-influence")), tell)


def self_influence_of(gradients: HeadGradients, tell: Say) -> Outcome:
    """The same from the gradients of a network that is trained already."""
    weights = gradients.delta.shape[1] * gradients.inputs.shape[1]
    exact = weights <= EXACT_UP_TO
    curvature = "exact" if exact else "kronecker"
    tell(f"self-influence: inverting the {curvature} Hessian of {weights} weights")
    values = exact_self_influence(gradients) if exact else kronecker_self_influence(gradients)
    return Outcome(to_scores(values), details={"curvature": curvature, "weights": weights})


@torch.no_grad()
def exact_self_influence(gradients: HeadGradients, damping: float = DAMPING) -> Tensor:
    """g_iᵀ (H + λI)⁻¹ g_i [n], by a Cholesky factor of the dense H."""
    matrix = hessian(gradients)
    matrix.diagonal().add_(damping * matrix.diagonal().mean().clamp_min(torch.finfo(matrix.dtype).tiny))
    factor = torch.linalg.cholesky(matrix)
    parts = []
    for rows in torch.arange(len(gradients), device=matrix.device).split(CHUNK):
        flat = gradients.take(rows).dense().flatten(1).double()
        parts.append(torch.linalg.solve_triangular(factor, flat.T, upper=False).square().sum(0))
    return torch.cat(parts)


@torch.no_grad()
def hessian(gradients: HeadGradients) -> Tensor:
    """H as a matrix over the flattened weights [C, D + 1], in float64."""
    inputs, p = gradients.inputs.double(), gradients.probabilities.double()
    classes, width = p.shape[1], inputs.shape[1]
    blocks = inputs.new_empty(classes, width, classes, width)
    for row in range(classes):
        for column in range(row, classes):
            weight = p[:, row] * (float(row == column) - p[:, column])
            blocks[row, :, column] = (inputs * weight[:, None]).T @ inputs / len(inputs)
            blocks[column, :, row] = blocks[row, :, column]
    return blocks.view(classes * width, classes * width)


@torch.no_grad()
def kronecker_self_influence(gradients: HeadGradients, damping: float = DAMPING) -> Tensor:
    """g_iᵀ (S ⊗ A + λI)⁻¹ g_i [n], in the eigenvectors of S and A."""
    inputs, p = gradients.inputs.double(), gradients.probabilities.double()
    s_values, s_vectors = torch.linalg.eigh(p.mean(0).diag() - p.T @ p / len(p))
    a_values, a_vectors = torch.linalg.eigh(inputs.T @ inputs / len(inputs))
    eigenvalues = s_values.clamp_min(0)[:, None] * a_values.clamp_min(0)
    eigenvalues += damping * eigenvalues.mean().clamp_min(torch.finfo(eigenvalues.dtype).tiny)
    turned_delta = (gradients.delta.double() @ s_vectors).square()
    turned_inputs = (inputs @ a_vectors).square()
    values: Tensor = (turned_inputs * (turned_delta @ eigenvalues.reciprocal())).sum(1)
    return values
