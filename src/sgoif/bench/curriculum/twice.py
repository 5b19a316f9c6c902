"""Training twice: with a curriculum, and then afresh on labels that the first network revised.

The second training is a plain one of the whole data set by the recipe, of a network with other initial weights, on soft
labels (`tasks.curriculum.revision`). Only its epochs are looked at; the accuracy of the first network is in the
details.
"""

from __future__ import annotations

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from sgoif.bench.curriculum.ours import JOINED, taught
from sgoif.bench.curriculum.study import Study, Trained, Weights


def twice(study: Study) -> Trained:
    """Weighed losses, the hold-out joins at the end; then a fresh network and revised labels."""
    problem = study.problem
    joined = study.options.get("joined", JOINED)
    first, teacher = taught(study, joined=joined, on_epoch=lambda model, teacher: None)
    before = study.seconds
    spent = before * (1 - 1 / (first.overhead or 1.0))
    accuracy = study.glance(teacher.monitor.model).accuracy
    labels = teacher.curriculum.revised(problem.dataset())
    given: Weights = labels[np.arange(len(problem)), problem.labels].numpy()
    learned = labels.to(problem.device)
    spent += study.seconds - before

    def loss(logits: Tensor, _: Tensor, index: Tensor) -> Tensor:
        return F.cross_entropy(logits, learned[index.to(problem.device)])

    model = problem.new_model(1)
    problem.fit(model, problem.batches(number=2), loss=loss, on_epoch=lambda epoch: study.look(model, weights=given))
    details = {**first.details, "first_accuracy": accuracy}
    return Trained(first.trainings + 1, details, overhead=study.seconds / max(study.seconds - spent, 1e-9))
