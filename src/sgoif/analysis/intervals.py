"""How far the mean score of an example may be off by sampling."""

import torch
from torch import Tensor

from sgoif.scoring.ledger import Ledger
from sgoif.stability.bounds import averaging_width, empirical_bernstein

SHRINKAGE = 4.0
"""How many observations the common variance counts for in the variance of one example."""


def half_width(ledger: Ledger, level: float, bound: float) -> Tensor:
    """Empirical-Bernstein half-width of every example's mean score, for decisions: it misses far less than it says.

    Scores are at most `bound` in size. Twice the common deviation takes its place as the bound on a single deviation:
    the squashing limit, which can never be wrong, would say nothing before an example has been seen a hundred times.
    """
    variance, common = _variances(ledger, bound)
    return empirical_bernstein(variance, ledger.effective_count(), 2 * common.sqrt(), 1 - level)


def interval_width(ledger: Ledger, level: float, bound: float, ratio: float = 1.0) -> Tensor:
    """Half-width of the intervals of the table, made to cover at about their level; a benchmark measures it.

    `ratio` is by how much observations of one example depend on each other (`scoring.autocorrelation`).
    """
    variance, common = _variances(ledger, bound)
    count = ledger.effective_count()
    width = averaging_width(ratio * variance, count, 1 - level)
    return torch.where(count < 2, 2 * (ratio * common).sqrt(), width)


def _variances(ledger: Ledger, bound: float) -> tuple[Tensor, Tensor]:
    """Of every example, shrunk towards that of all since it rests on few observations; and that of all."""
    count, variance = ledger.effective_count(), ledger.variance()
    known = count > 1
    common = variance[known].mean() if bool(known.any()) else variance.new_tensor(bound**2)
    own = torch.where(known, torch.nan_to_num(variance), common)
    behind = (count - 1).clamp_min(0)
    return (behind * own + SHRINKAGE * common) / (behind + SHRINKAGE), common
