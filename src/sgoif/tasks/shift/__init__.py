"""Whether an input belongs to what a network was trained on, and whether a stream of inputs has changed."""

from sgoif.tasks.shift.sentinel import Sentinel
from sgoif.tasks.shift.stream import Alarm, ShiftWatch

__all__ = ["Alarm", "Sentinel", "ShiftWatch"]
