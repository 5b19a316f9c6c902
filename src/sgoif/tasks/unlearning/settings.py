"""Settings of an unlearner: one place, validated when made."""

import math
from dataclasses import dataclass, field

from sgoif.settings import Options
from sgoif.tasks.unlearning.priority import Limits
from sgoif.tasks.unlearning.removal import STEPS


@dataclass(frozen=True, kw_only=True)
class UnlearnerSettings(Options):
    """How the head is fitted, how a removal is made, and what can wait."""

    l2: float = 5e-4
    """λ of the penalty λ/2 ‖w‖² on the mean loss; the same as a weight decay of λ. The certificate divides by it."""
    steps: int = STEPS
    """Most Newton steps of a removal."""
    limits: Limits = field(default_factory=Limits)
    """What can wait; see `Limits`."""

    def __post_init__(self) -> None:
        penalised = isinstance(self.l2, (int, float)) and math.isfinite(self.l2) and self.l2 > 0
        self.need(penalised, "l2", "a positive number such as 5e-4: without a penalty nothing can be certified")
        counted = isinstance(self.steps, int) and not isinstance(self.steps, bool) and self.steps >= 1
        self.need(counted, "steps", "a whole number: a removal takes at least one step")
        self.need(isinstance(self.limits, Limits), "limits", "Limits(...)")
