"""Whether an input belongs to what a network was trained on, and whether a stream of inputs has changed."""

from sgoif.tasks.ood.sentinel import Sentinel
from sgoif.tasks.ood.stream import Alarm, ShiftWatch

__all__ = ["Alarm", "Sentinel", "ShiftWatch"]
