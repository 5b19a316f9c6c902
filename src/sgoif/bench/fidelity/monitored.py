"""What a user's own monitor says about single queries: every held-out example a group of its own.

Nothing here is more than the page tells a user to write: an observer adds up what each batch does to each group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sgoif.bench.fidelity.answer import Answer, Cost, Trained
from sgoif.monitor import InfluenceMonitor
from sgoif.scoring import Observation, StepScores

OPTIONS: dict[str, Any] = {
    "gate": "none",
    "coverage_floor": 0.0,
    "solver": "conjugate",
    "damping": 0.03,
    "curvature_every": 4,
    "decay": 0.9,
}
"""No query is distrusted, their directions may be alike, and H is solved further and renewed more often than finding
wrong labels needs."""
TINY = torch.finfo(torch.float32).tiny


class Pairs:
    """What every training example does to every group of a monitor: passes over the data, each at unit length.

    A pass is over when an example comes back. The first is left out: nothing is known about a query then.
    """

    def __init__(self, monitor: InfluenceMonitor, examples: int) -> None:
        size = (len(monitor.group_names), examples)
        self._sum, self._now = (torch.zeros(size, device=monitor.device) for _ in range(2))
        self._seen = torch.zeros(examples, dtype=torch.bool, device=monitor.device)
        self.passes = 0
        monitor.observers.append(self._observe)

    def _observe(self, steps: Observation, scores: StepScores) -> None:
        if bool(self._seen[scores.index].any()):
            self._end()
        self._now.index_add_(1, scores.index, -scores.groups.T)
        self._seen[scores.index] = True

    def _end(self) -> None:
        if self.passes:
            self._sum += self._now / torch.linalg.vector_norm(self._now, dim=1, keepdim=True).clamp_min(TINY)
        self.passes += 1
        self._now.zero_()
        self._seen.zero_()

    def scores(self) -> Tensor:
        """s(q, i), [Q, N], positive where i helps q; the pass under way counts as one."""
        self._end()
        return self._sum


def by_groups(trained: Trained) -> Answer:
    """Train once more beside a monitor whose groups are the queries."""
    study, problem = trained.study, trained.study.problem
    x, y = (part.cpu() for part in study.query_tensors())
    cost = Cost(problem.device)
    with cost.counted():
        model, batches = problem.new_model(), problem.batches()
        optimizer = problem.optimizer(model, problem.recipe.epochs * len(batches))
        options = {**OPTIONS, "max_anchors": len(y), "refresh_every": len(batches)}
        with InfluenceMonitor(
            model, optimizer[0], TensorDataset(x, y), groups=range(len(y)), size=len(study), **options
        ) as monitor:
            pairs = Pairs(monitor, len(study))
            problem.fit(model, batches, optimizer=optimizer, watching=monitor.step)
        scores = pairs.scores()
    added = max(0.0, cost.seconds - trained.seconds)
    return Answer(scores.cpu().numpy(), added, cost.memory, details={"weights": monitor.layout.size})
