"""What a user's own monitor says about single queries: every held-out example a group of its own.

Nothing here is more than the page tells a user to write: an observer adds up what each batch does to each group, and
after training the monitor is asked how far predicted changes will be off. Confidence needs the leverage of the epochs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sgoif.anchors.bank import AnchorBank
from sgoif.monitor import InfluenceMonitor
from sgoif.scoring.influence import StepScores
from sgoif.scoring.step_batch import Observation
from sgoif_bench.fidelity.answer import Answer, Cost, Trained
from sgoif_bench.fidelity.online import trust_of

OPTIONS: dict[str, Any] = {
    "gate": "none",
    "coverage_floor": 0.0,
    "solver": "conjugate",
    "solver_steps": 40,
    "damping": 0.03,
    "curvature_every": 4,
    "decay": 0.9,
}
"""No query is distrusted, their directions may be alike, and H is solved further and renewed more often than finding
wrong labels needs. Solves start at the last direction, which is many times too long where a loss has since vanished."""
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


def leverage(bank: AnchorBank, gradient: Tensor) -> Tensor:
    """√(gᵀH⁻¹g) of every query's loss; `gradient` is what the directions of the bank were solved for."""
    found = torch.zeros(len(gradient), device=gradient.device)
    found[bank.member_groups] = (bank.phi * gradient).sum(1).clamp_min(TINY).sqrt()
    return found


def by_groups(trained: Trained) -> Answer:
    """Train once more beside a monitor whose groups are the queries."""
    study, problem = trained.study, trained.study.problem
    x, y = study.query_tensors()
    cost = Cost(problem.device)
    with cost.counted():
        model, batches = problem.new_model(), problem.batches()
        optimizer = problem.optimizer(model, problem.recipe.epochs * len(batches))
        options = {**OPTIONS, "max_anchors": len(y), "refresh_every": len(batches)}
        with InfluenceMonitor(
            model, optimizer[0], TensorDataset(x.cpu(), y.cpu()), groups=range(len(y)), size=len(study), **options
        ) as monitor:
            pairs, chance = Pairs(monitor, len(study)), torch.zeros(len(y), device=monitor.device)
            before: list[Tensor] = []

            def on_epoch(epoch: int) -> None:
                # The directions were renewed at the first step of the epoch, with the weights that the last one left.
                if before:
                    chance.add_(leverage(monitor.anchors, *before).log())
                before[:] = monitor.gradients.of_anchors()[:1]

            problem.fit(model, batches, optimizer=optimizer, watching=monitor.step, on_epoch=on_epoch)
        scores, error = pairs.scores(), monitor.expected_error(x, y)
        trust = trust_of(scores, pairs.lengths, chance, pairs.passes - 1)
    trust.pop("error")
    return Answer(
        scores.cpu().numpy(),
        max(0.0, cost.seconds - trained.seconds),
        cost.memory,
        confidence=trust.pop("confidence"),
        error=error.double().cpu().numpy(),
        details={"weights": monitor.layout.size, "trust": trust},
    )
