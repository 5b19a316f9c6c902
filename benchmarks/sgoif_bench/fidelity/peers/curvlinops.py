"""curvlinops: the exact generalised Gauss–Newton matrix, inverted by conjugate gradients for every query, all weights.

The matrix G is that of the mean loss of at most 1,000 training examples, and (G + λI)⁻¹ is applied with twenty
iterations, the dearest answer of all. (By the default of the solver behind it they would end after eleven, once the
residual is shorter than what is solved for.) λ is an absolute number, in units of the mean loss: curvlinops has no
damping of its own, G + λI being made of its operators. 0.01 is about what an exact solve would use; the steps beside it
are rows of their own.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from sgoif.core.losses import negative_margin
from sgoif_bench.fidelity.answer import Answer, Cost, Trained
from sgoif_bench.fidelity.peers.common import LARGE, batches, ended, label_changes, need, with_new_labels

EXAMPLES, ITERATIONS = 1000, 20
DAMPING = 0.01
TOLERANCE = 1e-6
"""Of the residual, as a share of what is solved for."""
CHUNK = 250
FEW = 1
"""Queries at a time on a large network."""


def gauss_newton(trained: Trained, damping: float = DAMPING) -> Answer:
    """Scores with the inverse of the damped matrix; `damping` is λ."""
    core = need("curvlinops", "curvlinops-for-pytorch")
    study, device = trained.study, trained.study.problem.device
    model, cost = ended(trained), Cost(device)
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    x, y = study.train_tensors()
    asked, labels = study.query_tensors()

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, weights, (image[None],)), label[None])

    def figure(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return negative_margin(functional_call(model, weights, (image[None],)), label[None])[0]

    def flat(gradients: dict[str, Tensor]) -> Tensor:
        return torch.cat([gradients[name].flatten(1) for name in parameters], dim=1)

    frozen = {name: value.detach() for name, value in parameters.items()}
    with cost.counted():
        spread = torch.linspace(0, len(x) - 1, min(EXAMPLES, len(x)), device=device).long()
        matrix = core.GGNLinearOperator(
            model,
            nn.CrossEntropyLoss(),
            list(parameters.values()),
            [(x[rows], y[rows]) for rows in spread.split(CHUNK)],
            check_deterministic=False,
        )
        size = sum(value.numel() for value in parameters.values())
        identity = need("curvlinops.examples", "curvlinops-for-pytorch").IdentityLinearOperator
        damped = matrix + damping * identity([value.shape for value in parameters.values()], x.device, x.dtype)
        inverse = core.CGInverseLinearOperator(damped, max_iter=ITERATIONS, max_tridiag_iter=0, tolerance=TOLERANCE)
        wanted = flat(vmap(grad(figure), in_dims=(None, 0, 0))(frozen, asked, labels))
        few, found = FEW if size > LARGE else len(asked), []
        for part in wanted.split(few):
            with warnings.catch_warnings():
                # That the iterations end before the residual is as short as that is meant.
                warnings.filterwarnings("ignore", message="CG terminated")
                found.append(inverse @ part.T)
            trained.tell(f"{sum(part.shape[1] for part in found)} of {len(asked)} queries solved")
        solved = torch.cat(found, dim=1)
        assert solved.shape == (size, len(asked))
        parts = [
            solved.T @ flat(vmap(grad(loss), in_dims=(None, 0, 0))(frozen, a, b)).T
            for a, b in zip(x.split(CHUNK), y.split(CHUNK), strict=True)
        ]
        scores = torch.cat(parts, dim=1)
    answers = scores.detach().float().cpu().numpy()
    changes = None
    if trained.relabelled is not None:
        parts = [
            solved.T @ flat(vmap(grad(loss), in_dims=(None, 0, 0))(frozen, a, b)).T
            for a, b in batches(with_new_labels(study, trained.relabelled), CHUNK, device)
        ]
        changes = label_changes(answers, torch.cat(parts, dim=1).detach().float().cpu().numpy(), trained.relabelled)
    return Answer(answers, cost.seconds, cost.memory, relabelled=changes)
