"""What the nearest neighbours by cosine say of a label.

knn-vote. Of the k = 10 nearest others j of example i, with similarity s_ij, the suspicion is the share with another
label, 1 − |{j : y_j = y_i}| / k. It takes k + 1 values; between examples of the same share the vote weighted by
(1 + s_ij) / 2 decides.

SimiFeat. Zhaowei Zhu, Zihao Dong, Yang Liu: "Detecting Corrupted Labels Without Training a Model to Predict", ICML
2022, as in the authors' code: an example is the first of its own k = 10 neighbours, its similarity replaced by
2 s_i1 − s_i2, lest it dominate. With votes v_i(c) = Σ_j s_ij [y_j = c], divided by their Euclidean norm,

    simifeat-vote   whether argmax_c v_i(c) ≠ y_i
    simifeat-rank   −log v_i(y_i)

each a mean over M = 21 epochs of randomly changed images. Of the vote, which then takes M + 1 values, examples with
the same are told apart by their mean share of votes for other classes. The paper's threshold of the rank, which needs
an estimate of how labels go wrong, changes no ranking within a class and is left out.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif_bench.pretrained.pictures import Neighbours, neighbours
from sgoif_bench.pretrained.task import Outcome, Task

LEAST = 1e-8
"""Added to a vote before its logarithm is taken, as in the authors' code."""


def knn(task: Task) -> dict[str, Outcome]:
    """The share of neighbours with another label."""
    features = task.pictures.features.value
    start = time.perf_counter()
    suspicion = disagreement(neighbours(features, task.recipe.neighbours), task.given)
    found = suspicion.double().cpu().numpy()
    return {"knn-vote": Outcome(found, time.perf_counter() - start)}


def disagreement(near: Neighbours, given: Tensor) -> Tensor:
    """Share of neighbours with another label, ties broken by the weighted share."""
    other = (given[near.rows] != given[:, None]).double()
    weight = (1 + near.similarity.double()) / 2
    weighted = (weight * other).sum(1) / weight.sum(1).clamp_min(LEAST)
    return other.mean(1) + weighted / (near.rows.shape[1] + 1)


def simifeat(task: Task) -> dict[str, Outcome]:
    """Vote and rank, over epochs that all tasks on these images share."""
    epochs, seconds = task.pictures.epochs
    start, given = time.perf_counter(), task.given
    against = torch.zeros(3, len(task), dtype=torch.float64, device=task.device)
    for near in epochs:
        against += torch.stack(votes_against(near, given, task.classes))
    wrong, share, rank = (against / len(epochs)).cpu().numpy()
    seconds += time.perf_counter() - start
    by_features = task.recipe.views == "features"
    vote = wrong + share / (len(epochs) + 1)
    return {
        "simifeat-vote": Outcome(vote, seconds, by_features),
        "simifeat-rank": Outcome(rank, seconds, by_features),
    }


def votes_against(near: Neighbours, given: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Whether another class wins, the share of votes for others, and −log of the given label's part of the norm."""
    similarity = near.similarity.double()
    own = 2 * similarity[:, :1] - similarity[:, 1:2]
    weights = torch.cat([own, similarity], dim=1)
    labels = torch.cat([given[:, None], given[near.rows]], dim=1)
    votes = torch.zeros(len(given), classes, dtype=torch.float64, device=given.device)
    votes.scatter_add_(1, labels, weights)
    for_given = votes.gather(1, given[:, None]).squeeze(1)
    share = 1 - for_given / votes.sum(1).clamp_min(LEAST)
    rank = -(F.normalize(votes, dim=1).gather(1, given[:, None]).squeeze(1).clamp_min(0) + LEAST).log()
    return (votes.argmax(1) != given).double(), share.clamp(0, 1), rank
