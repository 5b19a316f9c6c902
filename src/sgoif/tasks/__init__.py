"""From scores to decisions: each task reads a monitor and ends in something a person can do."""

from sgoif.tasks.labels import Decoys, LabelErrors, plant_decoys
from sgoif.tasks.shift import Alarm, Sentinel, ShiftWatch

__all__ = ["Alarm", "Decoys", "LabelErrors", "Sentinel", "ShiftWatch", "plant_decoys"]
