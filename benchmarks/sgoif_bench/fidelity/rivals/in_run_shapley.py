"""In-Run Data Shapley: the Shapley value of every training example in every step of one training run.

Jiachen T. Wang, Prateek Mittal, Dawn Song, Ruoxi Jia: "Data Shapley in One Training Run", ICLR 2025. The players of
step t are the examples of its batch B_t; a part S of them is worth what the step w_t − η_t Σ_{i∈S} ∇ℓ(w_t, z_i) would
do to the loss of a validation example. With the loss expanded about w_t, and here with −f(q), the negative margin of a
query, in its place, the Shapley values are, to the first order and with the second,

    φ¹(q, i) = −η_t g_qᵀ g_i ,        φ²(q, i) = φ¹(q, i) + ½ η_t² g_iᵀ H_q Σ_{j∈B_t} g_j ,

g_q and H_q being gradient and Hessian of −f(q) at w_t. They are added up over the steps of the run, and the score is
s = −Σ_t φ. η_t is the rate of the schedule over the size of the batch, whose mean loss is trained on. As in the paper a
step is one of plain SGD: momentum, which would multiply most steps by the same factor, and weight decay are left out.

First-order products are the paper's "ghost dot-products": with g = δ ⊗ a in a layer, g_qᵀ g_i = (δ_qᵀ δ_i)(a_qᵀ a_i),
so that no gradient is formed where a layer sees one position of an example. Only watched weights count; of the networks
here these are all. The second order takes one directional derivative of all queries' gradients per step, of every
trainable weight, on images as they are, not augmented. What a new label would do cannot be asked: nothing is trained on
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional as F

from sgoif.core.losses import negative_margin
from sgoif.curvature.base import Factors
from sgoif.tracking.evaluation import evaluation
from sgoif.tracking.pass_record import PassRecord
from sgoif_bench.fidelity.answer import Answer, Cost, Trained
from sgoif_bench.fidelity.rivals.whole import WholeWatch
from sgoif_bench.fidelity.study import Study


def in_run_shapley(trained: Trained, order: int = 1) -> Answer:
    """Train once more and add up the values of every step; what that takes beyond the plain run is the cost."""
    study, problem = trained.study, trained.study.problem
    cost = Cost(problem.device)
    with cost.counted():
        model, batches = problem.new_model(), problem.batches()
        optimizer = problem.optimizer(model, problem.recipe.epochs * len(batches))
        run = InRun(study, model, optimizer[0], order)
        problem.fit(model, batches, optimizer=optimizer, watching=run.step)
        run.close()
    seconds = max(0.0, cost.seconds - trained.seconds)
    return Answer(run.scores.cpu().numpy(), seconds, cost.memory, details={"weights": run.watch.layout.size})


class InRun:
    """Adds up −φ(q, i) along a run, [Q, N]."""

    def __init__(self, study: Study, model: nn.Module, optimizer: torch.optim.Optimizer, order: int = 1) -> None:
        self.study, self.model, self.optimizer, self.order = study, model, optimizer, order
        self.watch = WholeWatch(study, model)
        self.scores = torch.zeros(len(study.queries), len(study), device=study.problem.device)

    def close(self) -> None:
        """Remove the hooks."""
        self.watch.close()

    @contextmanager
    def step(self, index: Tensor) -> Iterator[None]:
        """Around the forward and backward pass of one batch, before the step that it leads to."""
        watch, record = self.watch, PassRecord(keep=self.watch.names)
        with watch.capture.open(record):
            yield
        with torch.no_grad():
            scale = torch.tensor(1 / len(index), device=self.scores.device)
            own = [record.factors(layer, scale, len(index)) for layer in watch.layers]
            rate = float(self.optimizer.param_groups[0]["lr"]) / len(index)
            found = rate * torch.cat([products(asked, own) for asked in watch.query_factors()])
        if self.order > 1:
            found = found - rate**2 / 2 * self.curved(index)
        self.scores.index_add_(1, index.to(self.scores.device), found)

    def curved(self, index: Tensor) -> Tensor:
        """g_iᵀ H_q Σ_j g_j of the queries and the examples of a batch, [Q, B], in evaluation mode."""
        weights = {name: value.detach() for name, value in self.model.named_parameters() if value.requires_grad}
        x, y = self.study.train_tensors(index.cpu().numpy())
        asked, labels = self.study.query_tensors()

        def loss(at: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(self.model, at, (image[None],)), label[None])

        def figure(at: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            return negative_margin(functional_call(self.model, at, (image[None],)), label[None])[0]

        def slopes(at: dict[str, Tensor]) -> dict[str, Tensor]:
            found: dict[str, Tensor] = vmap(grad(figure), in_dims=(None, 0, 0))(at, asked, labels)
            return found

        with evaluation(self.model):
            own = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
            turned = jvp(slopes, (weights,), ({name: slope.sum(0) for name, slope in own.items()},))[1]
        theirs, ours = (torch.cat([part[name].flatten(1) for name in weights], dim=1) for part in (turned, own))
        return theirs @ ours.T


def products(ones: Sequence[Factors], others: Sequence[Factors]) -> Tensor:
    """Σ over layers of g_qᵀ g_i, [Q, B]."""
    total = torch.zeros((), device=ones[0].delta.device)
    for one, other in zip(ones, others, strict=True):
        if one.elementwise or one.delta.shape[1] > 1:
            total = total + one.gradient().flatten(1) @ other.gradient().flatten(1).T
        else:
            total = total + (one.delta[:, 0] @ other.delta[:, 0].T) * (one.inputs[:, 0] @ other.inputs[:, 0].T)
    return total
