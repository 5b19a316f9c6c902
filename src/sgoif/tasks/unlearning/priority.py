"""Which requests call for training the whole network again now, and which can wait for the next training.

The urgency of a request is the largest of measurement / limit, over what docs/unlearning.md says is measured. At 1 or
more it is "now", below it "can wait". Small requests add up: where all that was deleted since the network was trained
is more than the limit for the size, a request is "now" too, with an urgency of 1 if nothing makes it more urgent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from sgoif.errors import SettingError
from sgoif.tasks.unlearning.influence import Effect
from sgoif.tasks.unlearning.removal import Certificate
from sgoif.tasks.unlearning.text import counted, quoted

When = Literal["now", "can wait"]
MOST_URGENT = 1e9
Counts = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What can wait."""

    logits: float = 0.01
    """Largest distance of a typical input's logits from those of the retrained head."""
    flips: int = 0
    """Held-out predictions that may change."""
    loss: float = 0.01
    """Change of the mean held-out loss, as a share of it."""
    share: float = 0.01
    """Share of the training examples that may be deleted before the network is trained again."""
    class_share: float = 0.1
    """The same for the examples of any one class."""

    def __post_init__(self) -> None:
        for name in ("logits", "loss", "share", "class_share"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise SettingError(f"the limit {name}={value!r} is not valid: expected a positive number")
        if isinstance(self.flips, bool) or not isinstance(self.flips, int) or self.flips < 0:
            raise SettingError(f"the limit flips={self.flips!r} is not valid: expected a whole number from 0 up")


@dataclass(frozen=True)
class Size:
    """How much of the training data some examples are."""

    examples: int
    total: int
    of_class: int
    """Of the class that loses the largest share of its examples,"""
    class_total: int
    """which had so many,"""
    class_name: str
    """and is called so."""

    @classmethod
    def of(cls, gone: Counts, totals: Counts, class_names: Sequence[str]) -> Self:
        """From the examples of every class that go, and that there were."""
        shares = np.divide(gone, totals, out=np.zeros(len(totals)), where=totals > 0)
        worst = int(shares.argmax())
        counts = int(gone.sum()), int(totals.sum()), int(gone[worst]), max(1, int(totals[worst]))
        return cls(*counts, quoted(class_names[worst]))

    def measured(self, limits: Limits) -> tuple[float, str]:
        """The larger of the two shares over its limit, and the share in words."""
        of_all = self.examples / self.total / limits.share
        of_class = self.of_class / self.class_total / limits.class_share
        if of_all >= of_class:
            return of_all, f"{counted(self.examples, 'example')} of {self.total:,} (limit {limits.share:.3g} of them)"
        which = f"{counted(self.of_class, 'example')} of the {self.class_total:,} of class {self.class_name}"
        return of_class, f"{which} (limit {limits.class_share:.3g} of them)"


@dataclass(frozen=True)
class Verdict:
    """Now or later, and why."""

    when: When
    urgency: float
    reasons: tuple[str, ...]
    """The strongest first."""


def judge(
    limits: Limits,
    effect: Effect,
    certificate: Certificate,
    typical: float,
    own: Size,
    accumulated: Size,
    queries: str = "held-out",
) -> Verdict:
    """Compare what was measured with the limits.

    `typical` is ‖ã‖ of a typical query and `queries` what kind they are; `accumulated` is all that is deleted since the
    network was trained, this request included.
    """
    off = certificate.logits(typical)
    relative = effect.largest_change / effect.loss if effect.loss > 0 else math.inf
    (size, share), (sum_size, sum_share) = own.measured(limits), accumulated.measured(limits)
    measured = [
        (
            effect.flips / (limits.flips + 1),
            f"{counted(effect.flips, 'prediction')} of {effect.queries:,} {queries} ones"
            f" change{'s' if effect.flips == 1 else ''} (limit {limits.flips})",
        ),
        (
            relative / limits.loss,
            f"the {queries} loss changes by at most {relative:.2g} of itself (limit {limits.loss:g})",
        ),
        (
            off / limits.logits,
            f"after the removal a typical logit is within {off:.2g} of that of the retrained head"
            f" (limit {limits.logits:g})",
        ),
        (size, f"it deletes {share}"),
        (min(sum_size, 1.0), f"since the network was trained it makes {sum_share}"),
    ]
    ordered = sorted(measured, key=lambda pair: -pair[0])
    decisive = [reason for ratio, reason in ordered if ratio >= 1]
    reasons = decisive or [reason for _, reason in ordered]
    return Verdict("now" if decisive else "can wait", min(ordered[0][0], MOST_URGENT), tuple(reasons))
