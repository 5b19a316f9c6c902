"""Training twice: a fresh network learns what the first one makes of the labels.

The second training is a plain one of the whole data set by the recipe, of a network with other initial weights, on soft
labels: after a curriculum those it revised (`tasks.curriculum.revision`), after a rival what its network answers at the
end, without the labels that were given (Furlanello et al., Born Again Neural Networks, ICML 2018). Only the epochs of
the second training are looked at; the accuracy of the first network is in the details.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif_bench.curriculum.ours import taught
from sgoif_bench.curriculum.rivals import sce_network, symmetric_loss
from sgoif_bench.curriculum.study import Study, Trained, Weights

SoftLoss = Callable[[Tensor, Tensor], Tensor]
"""The mean loss of a batch from its logits and soft labels, both [B, C]."""


def twice(study: Study) -> Trained:
    """Weighed losses, the hold-out joins at the end; then a fresh network and revised labels."""
    return _revised(study, F.cross_entropy)


def twice_robust(study: Study) -> Trained:
    """The same, and the first network has a robust loss as far as labels seem wrong at random."""
    return _revised(study, F.cross_entropy, robust=True)


def twice_sce(study: Study) -> Trained:
    """The same with symmetric cross entropy for the revised labels, some of which are still wrong."""
    return _revised(study, symmetric_loss)


def _revised(study: Study, loss: SoftLoss, *, robust: bool = False) -> Trained:
    first, teacher = taught(study, on_epoch=lambda model, teacher: None, robust=robust)
    before = study.seconds
    spent = before * (1 - 1 / (first.overhead or 1.0))
    accuracy = study.glance(teacher.monitor.model).accuracy
    labels = teacher.curriculum.revised(study.problem.dataset())
    spent += study.seconds - before
    _again(study, labels, loss)
    details = {**first.details, "first_accuracy": accuracy}
    return Trained(first.trainings + 1, details, overhead=study.seconds / max(study.seconds - spent, 1e-9))


def plain_twice(study: Study) -> Trained:
    """Cross entropy on all labels; then a fresh network and the answers of the first."""
    problem = study.problem
    model = problem.new_model()
    return _answers(study, problem.fit(model, problem.batches()))


def sce_twice(study: Study) -> Trained:
    """Symmetric cross entropy; then a fresh network and the answers of the first."""
    return _answers(study, sce_network(study.problem, lambda model, epoch: None))


def _answers(study: Study, model: nn.Module) -> Trained:
    accuracy = study.glance(model).accuracy
    _again(study, study.problem.predict(model).softmax(dim=1).cpu())
    return Trained(2.0, {"first_accuracy": accuracy})


def _again(study: Study, labels: Tensor, loss: SoftLoss = F.cross_entropy) -> None:
    """Train a fresh network on soft labels, [N, C]; what is left of a given label is what it weighs."""
    problem = study.problem
    given: Weights = labels[np.arange(len(problem)), problem.labels].numpy()
    learned = labels.to(problem.device)

    model = problem.new_model(1)
    problem.fit(
        model,
        problem.batches(number=2),
        loss=lambda logits, _, index: loss(logits, learned[index.to(problem.device)]),
        on_epoch=lambda epoch: study.look(model, weights=given),
    )
