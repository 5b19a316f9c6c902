"""Refinement where it changes the ranking: large scores with wide intervals.

The anchors behind such scores are solved further by short conjugate gradients: those that the gate already trusts in
part (0 < c_v < 1). Why others are left outside the gate is in docs/method.md. The paper refines whoever has a low c_v
and a large |φ_vᵀg_i| (`outside`): those of the largest (1 − c_v)‖φ_v‖, which bounds what the gate takes from a score
per ‖g_i‖.
"""

import torch
from torch import Tensor

from sgoif.anchors.bank import AnchorBank
from sgoif.scoring.ledger import Ledger
from sgoif.solvers.base import Operator, Solution, row_norm
from sgoif.solvers.conjugate import ConjugateGradient

LARGE_SHARE = 0.01
MOST_ANCHORS = 32


def doubtful_groups(ledger: Ledger, half_width: Tensor) -> Tensor:
    """Groups harmed by examples whose score is among the largest and whose interval is wider than the score."""
    mean = ledger.mean("score")
    size = torch.nan_to_num(mean.abs(), nan=-1.0)
    count = max(1, int(LARGE_SHARE * len(size)))
    large = torch.topk(size, count).indices
    doubtful = large[(half_width[large] > size[large]) & (size[large] > 0)]
    groups, _ = ledger.worst_group(doubtful)
    found: Tensor = torch.unique(groups[groups >= 0])
    return found


def refine(
    bank: AnchorBank,
    gradient: Tensor,
    operator: Operator,
    solution: Solution,
    groups: Tensor,
    solver: ConjugateGradient,
    *,
    outside: bool = False,
) -> Tensor:
    """Solve anchors of these groups further, in place; returns the rows that were refined.

    They are the half-trusted ones, or with `outside` those that the gate costs most.
    """
    confidence = bank.confidence.cpu()
    chosen = (confidence < 1) & ((confidence > 0) | outside)
    chosen &= torch.isin(bank.groups[bank.members], groups.cpu())
    rows = chosen.nonzero().squeeze(1)
    if not len(rows):
        return rows
    first = confidence
    if outside:
        first = (1 - confidence) * bank.communicator.gathered(row_norm(bank.phi).cpu())
    rows = rows[torch.argsort(first[rows], descending=True, stable=True)[:MOST_ANCHORS]]
    before = bank.residual.clone()
    mine = rows[(rows >= bank.own.start) & (rows < bank.own.stop)]
    if len(mine):
        own = mine - bank.own.start
        better = solver.solve(operator, gradient[own], bank.phi[own])
        norm = better.norms.residual
        improved = norm < bank.residual[mine]
        mine, own = mine[improved], own[improved]
        bank.phi[own] = better.phi[improved]
        bank.residual[mine] = norm[improved]
        solution.residual[own] = better.residual[improved]
        solution.products += better.products
    bank.residual = bank.communicator.gathered(bank.residual[bank.own])
    return rows[bank.residual[rows] < before[rows]]
