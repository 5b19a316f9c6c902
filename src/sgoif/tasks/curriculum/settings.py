"""The settings of a curriculum, validated when made."""

from dataclasses import dataclass, fields
from math import isfinite
from numbers import Real

from sgoif.settings import Options


@dataclass(frozen=True)
class CurriculumSettings(Options):
    """When examples are judged, and how far their weights may move."""

    warm_up: float = 4.0
    """Epochs before the first judgement; weights are one until the second."""
    every: float = 1.0
    """Epochs between two judgements."""
    sharpness: float = 1.5
    """How decided weights are: 1 gives up in proportion to the probability of a wrong label, more than 1 takes the same
    total rather from the most probable ones."""
    floor: float = 0.01
    """Least share of its weight that an example keeps, so that it goes on being scored and can come back."""
    class_floor: float = 0.7
    """Least share of its weight that a class keeps, by given labels."""
    balance: float = 0.5
    """How far the weight of a class follows its estimated true size: 0 not at all, 1 all the way."""
    boost: float = 3.0
    """Largest factor by which an example can gain from what others of its class give up."""
    speed: float = 1 / 3
    """Which part of the way to its new value a weight moves at one judgement."""
    fade: float = 0.9
    """What an answer counts for at a judgement over what it counted for at the one before; 1: old ones like new."""
    robust: bool = False
    """Whether `loss` lets go of labels that a network contradicts, as far as they are wrong at random."""

    def __post_init__(self) -> None:
        need = self.need
        need(isinstance(self.robust, bool), "robust", "True or False")
        for item in fields(self):
            need(isinstance(getattr(self, item.name), Real), item.name, "a number")
        need(isfinite(self.warm_up) and self.warm_up >= 1, "warm_up", "at least 1 epoch: before, nothing is known")
        need(isfinite(self.every) and self.every > 0, "every", "a positive number of epochs")
        need(isfinite(self.sharpness) and self.sharpness > 0, "sharpness", "a positive power")
        need(0 < self.floor <= 1, "floor", "a share in (0, 1]: an example of no weight leaves no gradient to score")
        need(0 <= self.class_floor <= 1, "class_floor", "a share in [0, 1]")
        need(0 <= self.balance <= 1, "balance", "a share in [0, 1]")
        need(isfinite(self.boost) and self.boost >= 1, "boost", "a factor of at least 1")
        need(0 < self.speed <= 1, "speed", "a share in (0, 1]")
        need(0 < self.fade <= 1, "fade", "a factor in (0, 1]")
