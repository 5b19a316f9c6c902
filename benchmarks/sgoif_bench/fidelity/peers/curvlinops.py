"""curvlinops: the exact generalised Gauss–Newton matrix, inverted by conjugate gradients for every query, all weights.

The matrix is that of at most 1,000 training examples; twenty iterations with a damping of 0.01, which is about what an
exact solve would use, and the dearest answer of all.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from sgoif.core.losses import negative_margin
from sgoif_bench.fidelity.answer import Answer, Cost, Trained
from sgoif_bench.fidelity.peers.common import LARGE, batches, ended, label_changes, need, with_new_labels

EXAMPLES, ITERATIONS, DAMPING = 1000, 20, 0.01
CHUNK = 250
FEW = 1
"""Queries at a time on a large network."""


def gauss_newton(trained: Trained) -> Answer:
    """Scores with the inverse of the damped matrix."""
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
        damped = matrix + DAMPING * identity([value.shape for value in parameters.values()], x.device, x.dtype)
        inverse = core.CGInverseLinearOperator(damped, max_iter=ITERATIONS, max_tridiag_iter=0)
        wanted = flat(vmap(grad(figure), in_dims=(None, 0, 0))(frozen, asked, labels))
        few, found = FEW if size > LARGE else len(asked), []
        for part in wanted.split(few):
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
