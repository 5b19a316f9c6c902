"""Spectral signatures: poison moves the features of its class along one direction.

Brandon Tran, Jerry Li, Aleksander Madry: "Spectral Signatures in Backdoor Attacks", NeurIPS 2018. For every class c
with features R(x_i) of the last hidden layer and their mean R̄_c, let v be the top right singular vector of the matrix
with rows R(x_i) − R̄_c. Then

    score(x_i) = ( (R(x_i) − R̄_c) · v )²

and of every class the 1.5 ε examples with the largest scores are removed, ε being a bound on the number of poisoned
examples in a class. Nobody knows it; here the true number of all poisoned examples is told to the method.

`spectral_along` is the plain way to use the run as well: the same score at every checkpoint, each divided by its mean
over all examples, averaged. The rule is the same.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sgoif_bench.labels.problem import Rows, Scores
from sgoif_bench.labels.rivals.influence_common import to_scores
from sgoif_bench.poisoning.case import Case, Finding

MARGIN = 1.5


def spectral(case: Case) -> Finding:
    """Scores at the end of training."""
    return _found(case, to_scores(signatures(case.features, case.labels, case.problem.classes)))


def spectral_along(case: Case) -> Finding:
    """Scores averaged over the checkpoints."""
    total = torch.zeros(len(case.problem), dtype=torch.float64, device=case.problem.device)
    for _, model in case.checkpoints.models(case.problem):
        scores = signatures(case.problem.features(model), case.labels, case.problem.classes)
        total += scores / scores.mean().clamp_min(torch.finfo(scores.dtype).tiny)
    return _found(case, to_scores(total))


def _found(case: Case, suspicion: Scores) -> Finding:
    count = round(MARGIN * case.poison)
    return Finding(suspicion, top_of_each_class(suspicion, case.problem.labels, count))


@torch.no_grad()
def signatures(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Squared projections on the top singular vector of each class, [N] in float64."""
    scores = torch.zeros(len(features), dtype=torch.float64, device=features.device)
    for label in range(classes):
        rows = (labels == label).nonzero().squeeze(1)
        if len(rows) < 2:
            continue
        centred = features[rows].double()
        centred = centred - centred.mean(0)
        # The top right singular vector of X is the top eigenvector of XᵀX, which is small.
        direction = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -1]
        scores[rows] = (centred @ direction).square()
    return scores


def top_of_each_class(suspicion: Scores, labels: Rows, count: int) -> Rows:
    """Rows of the so many most suspicious examples of every class."""
    found = [np.zeros(0, dtype=np.int64)]
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        found.append(rows[np.argsort(-suspicion[rows], kind="stable")[:count]])
    return np.sort(np.concatenate(found))
