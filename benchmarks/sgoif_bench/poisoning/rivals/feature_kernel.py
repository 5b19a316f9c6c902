"""The plain feature kernel: training examples that look to the trained network like the victims and carry their answer.

With f the centred features of the last hidden layer at the end of training, and victims v with wrong answers w_v,

    suspicion(x_i) = mean_v [y_i = w_v] (1 + cos(f(x_i), f(x_v))) / 2

A baseline of this benchmark: what one gets with no influence at all. There is no rule of its own for what to remove.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif_bench.labels.rivals.influence_common import to_scores
from sgoif_bench.poisoning.case import Case, Finding


def feature_kernel(case: Case) -> Finding:
    """Mean similarity to the victims, among examples with the victims' wrong answer."""
    victims = case.victim_problem()
    wanted = torch.from_numpy(victims.labels).to(case.labels.device)
    return Finding(to_scores(similarity(case.features, case.labels, victims.features(case.model), wanted)))


@torch.no_grad()
def similarity(features: Tensor, labels: Tensor, victims: Tensor, wanted: Tensor) -> Tensor:
    """mean_v [y_i = w_v] (1 + cos) / 2 for every example."""
    centre = features.mean(0)
    cosine = F.normalize(features - centre, dim=1) @ F.normalize(victims - centre, dim=1).T
    return ((1 + cosine) / 2 * (labels[:, None] == wanted[None, :])).mean(1)
