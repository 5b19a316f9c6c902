"""Label agreement among nearest neighbours in the features of the trained network.

The vote is that of weighted nearest neighbours as in Zhirong Wu, Yuanjun Xiong, Stella Yu, Dahua Lin: "Unsupervised
Feature Learning via Non-Parametric Instance Discrimination", CVPR 2018; its use on labels is that of Zhaowei Zhu,
Zihao Dong, Yang Liu: "Detecting Corrupted Labels Without Training a Model to Predict", ICML 2022. For the k nearest
neighbours j of example i by cosine similarity s_ij, i itself left out,

    v_i(c) = Σ_j exp(s_ij / τ) [y_j = c],      suspicion = 1 − v_i(y_i) / Σ_c v_i(c)

the weighted share of neighbours with another label. Flagged is an example whose neighbours vote for another class:
argmax_c v_i(c) ≠ y_i. τ = 0.07 and k = 200 as in the first paper, k at most half the mean size of a class.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem
from sgoif_bench.labels.rivals.influence_common import BLOCK, nearest, to_scores, train

NEIGHBOURS = 200
TEMPERATURE = 0.07


def knn(problem: Problem, tell: Say) -> Outcome:
    """Weighted share of neighbours that carry another label."""
    return knn_of(problem, problem.features(train(problem, tell, "kNN")), tell)


def knn_of(problem: Problem, features: Tensor, tell: Say) -> Outcome:
    """The same from the features of a network that is trained already."""
    count = neighbour_count(len(problem), problem.classes)
    tell(f"kNN: {count} neighbours of each example")
    labels = torch.from_numpy(problem.labels).to(problem.device)
    votes = neighbour_votes(features, labels, problem.classes, count)
    agreeing = votes.gather(1, labels[:, None]).squeeze(1) / votes.sum(1)
    flagged = (votes.argmax(1) != labels).cpu().numpy()
    return Outcome(to_scores(1 - agreeing), flagged=flagged, details={"neighbours": count})


def neighbour_count(size: int, classes: int) -> int:
    """k: beyond half a class the vote would leave it even where the features are perfect."""
    return max(1, min(NEIGHBOURS, size // (2 * classes)))


@torch.no_grad()
def neighbour_votes(features: Tensor, labels: Tensor, classes: int, count: int) -> Tensor:
    """v_i(c) up to a factor common to all, [N, C]."""
    unit = F.normalize(features, dim=1)
    squared, rows = nearest(unit, unit, count, own=torch.arange(len(unit)))
    # Unit vectors: s = 1 − d²/2, so exp((s − 1) / τ) = exp(−d² / 2τ), and nearest by d is nearest by s.
    weights = (-squared / (2 * TEMPERATURE)).exp()
    parts = [
        (F.one_hot(labels[some], classes) * weight[:, :, None]).sum(1)
        for some, weight in zip(rows.split(BLOCK), weights.split(BLOCK), strict=True)
    ]
    return torch.cat(parts)
