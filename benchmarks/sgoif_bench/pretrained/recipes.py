"""How every method of the comparison works: one set of numbers for all data sets.

Those of heads and fine-tunings are the product's, those of rivals their papers'; no rival was tuned.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sgoif.audit.plan import PEAK_OWN, TUNED_EPOCHS
from sgoif.errors import SettingError
from sgoif.tasks.crossfit.head import EPOCHS, HIDDEN, LEARNING_RATE

Views = Literal["images", "features"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything an outcome depends on beside data set, noise, method and seed."""

    backbone: str
    digest: str
    """The beginning of that of the backbone."""
    size: int
    """Pixels a side that the network sees."""
    limit: int | None = None
    """Only so many examples of the data set; None for all."""
    views: Views = "images"
    """What an epoch of SimiFeat looks at: images shifted and mirrored anew, or half of the kept features."""
    simifeat_epochs: int = 21
    neighbours: int = 10
    folds: int = 5
    head_units: int = field(default=HIDDEN, init=False)
    """Hidden units of a head on features, those of the product."""
    head_epochs: int = EPOCHS
    head_rate: float = LEARNING_RATE
    """Peak of the learning rate of a head on features."""
    epochs: int = TUNED_EPOCHS
    """Of a fine-tuning."""
    rate: float = PEAK_OWN
    """Peak of the learning rate of the head in a fine-tuning, at a batch of 128; the body has a tenth."""

    def __post_init__(self) -> None:
        least = {"simifeat_epochs": 1, "neighbours": 3, "folds": 2, "head_epochs": 1, "epochs": 1}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise SettingError(f"{name} = {getattr(self, name)} must be at least {smallest}")
        if not (self.rate > 0 and self.head_rate > 0):
            raise SettingError(f"rate = {self.rate} and head_rate = {self.head_rate} must be positive")
        if self.limit is not None and self.limit < 20:
            raise SettingError(f"limit = {self.limit} leaves too little to compare; 20 is the least")

    @property
    def described(self) -> dict[str, Any]:
        """As it is written down and compared."""
        return asdict(self)
