"""What a user's own monitor says about single queries: every held-out example a group of its own.

Nothing here is more than the page tells a user to write: an observer adds up what each batch does to each group, and
after every epoch the leverage of the queries says how far predicted changes will be off.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sgoif.anchors import AnchorBank
from sgoif.bench.fidelity.answer import Answer, Cost, Trained
from sgoif.bench.fidelity.online import trust_of
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
        self.lengths = torch.zeros(size[0], device=monitor.device)
        """Sum over passes of the logarithms of their lengths."""
        self.passes = 0
        monitor.observers.append(self._observe)

    def _observe(self, steps: Observation, scores: StepScores) -> None:
        if bool(self._seen[scores.index].any()):
            self._end()
        self._now.index_add_(1, scores.index, -scores.groups.T)
        self._seen[scores.index] = True

    def _end(self) -> None:
        if self.passes:
            length = torch.linalg.vector_norm(self._now, dim=1).clamp_min(TINY)
            self._sum += self._now / length.unsqueeze(1)
            self.lengths += length.log()
        self.passes += 1
        self._now.zero_()
        self._seen.zero_()

    def scores(self) -> Tensor:
        """s(q, i), [Q, N], positive where i helps q; the pass under way counts as one."""
        self._end()
        return self._sum


def leverage(bank: AnchorBank, gradient: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
    """√(gᵀH⁻¹g) of every query's loss, and of its margin, whose gradient is that of the loss over p − 1.

    Gradients and losses are those that the directions of the bank were solved for.
    """
    found = torch.zeros(2, len(loss), device=loss.device)
    found[0, bank.member_groups] = (bank.phi * gradient).sum(1).clamp_min(TINY).sqrt()
    found[1, bank.member_groups] = found[0, bank.member_groups] / (-torch.expm1(-loss)).clamp_min(TINY)
    return found[0], found[1]


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
            pairs, chance = Pairs(monitor, len(study)), torch.zeros(2, len(y), device=monitor.device)
            before: list[Tensor] = []

            def on_epoch(epoch: int) -> None:
                # The directions were renewed at the first step of the epoch, with the weights that the last one left.
                if before:
                    chance.add_(torch.stack(leverage(monitor.anchors, *before)).log())
                before[:] = monitor.anchor_gradients()[:2]

            problem.fit(model, batches, optimizer=optimizer, watching=monitor.step, on_epoch=on_epoch)
        scores = pairs.scores()
        trust = trust_of(scores, pairs.lengths, chance[0], pairs.passes - 1)
    error = (chance[1] / (pairs.passes - 1)).exp().double().cpu().numpy()
    trust.pop("error")
    return Answer(
        scores.cpu().numpy(),
        max(0.0, cost.seconds - trained.seconds),
        cost.memory,
        confidence=trust.pop("confidence"),
        error=error,
        details={"weights": monitor.layout.size, "trust": trust},
    )
