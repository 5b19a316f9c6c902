"""From scores to decisions: each task reads a monitor and ends in something a person can do."""

from sgoif.tasks.labels import Decoys, LabelErrors, plant_decoys

__all__ = ["Decoys", "LabelErrors", "plant_decoys"]
