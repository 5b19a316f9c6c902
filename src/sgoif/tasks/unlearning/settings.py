"""Settings of an unlearner: one place, validated when made."""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Self

from sgoif.errors import SettingError
from sgoif.tasks.unlearning.priority import Limits
from sgoif.tasks.unlearning.removal import STEPS


@dataclass(frozen=True, kw_only=True)
class UnlearnerSettings:
    """How the head is fitted, how a removal is made, and what can wait."""

    l2: float = 5e-4
    """λ of the penalty λ/2 ‖w‖² on the mean loss; the same as a weight decay of λ. The certificate divides by it."""
    steps: int = STEPS
    """Most Newton steps of a removal."""
    limits: Limits = field(default_factory=Limits)
    """What can wait; see `Limits`."""

    def __post_init__(self) -> None:
        if not (isinstance(self.l2, (int, float)) and math.isfinite(self.l2) and self.l2 > 0):
            raise SettingError(
                f"l2={self.l2!r} is not valid: expected a positive number such as 5e-4; without a penalty the head need"
                " not have an optimum, and nothing can be certified about it"
            )
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise SettingError(f"steps={self.steps!r} is not valid: a removal takes at least one step")
        if not isinstance(self.limits, Limits):
            raise SettingError(f"limits={self.limits!r} is not valid: expected Limits(...)")

    @classmethod
    def make(cls, options: dict[str, Any]) -> Self:
        """Settings from keyword arguments; an unknown one is named."""
        known = [item.name for item in fields(cls)]
        if unknown := sorted(set(options) - set(known)):
            raise SettingError(f"an unlearner has no option {', '.join(unknown)}; it has {', '.join(known)}")
        return cls(**options)
