"""From scores to decisions: each task reads a monitor and ends in something a person can do."""

from sgoif.tasks.labels import Decoys, LabelErrors, plant_decoys
from sgoif.tasks.shift import Alarm, Sentinel, ShiftWatch
from sgoif.tasks.unlearning import Limits, Unlearner

__all__ = ["Alarm", "Decoys", "LabelErrors", "Limits", "Sentinel", "ShiftWatch", "Unlearner", "plant_decoys"]
