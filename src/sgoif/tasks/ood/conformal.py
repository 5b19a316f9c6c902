"""Conformal p-values: how often would an input that belongs look at least this strange?

With the scores s_1 … s_n of inputs that belong and took no part in anything that shaped the score,

    p(x) = (1 + #{i: s_i ≥ s(x)}) / (n + 1)

and P(p ≤ α) ≤ α for an input from the same distribution, whatever that is and however good or bad the score.
"""

import math

import torch
from torch import Tensor

from sgoif.tasks.argument_checks import check_share


def p_values(scores: Tensor, calibration: Tensor) -> Tensor:
    """p of every score, [n]; `calibration` is sorted, smallest first. A score that is not a number gets the least p."""
    strange = torch.nan_to_num(scores.to(calibration.dtype), nan=math.inf)
    smaller = torch.searchsorted(calibration, strange, right=False)
    return (1 + len(calibration) - smaller).to(torch.float64) / (len(calibration) + 1)


def threshold(calibration: Tensor, false_alarms: float) -> float:
    """The score above which p ≤ `false_alarms`; infinite where the calibration is too small for so few."""
    check_share(false_alarms, "false_alarms")
    beyond = math.floor(false_alarms * (len(calibration) + 1)) - 1
    return float(calibration[-1 - beyond]) if beyond >= 0 else math.inf
