"""From scores to decisions: each task reads a monitor and ends in something a person can do."""

from sgoif.tasks.curriculum import Curriculum, CurriculumReport, CurriculumSampler, CurriculumSettings
from sgoif.tasks.labels import Decoys, LabelErrors, plant_decoys
from sgoif.tasks.poisoning import Family, Found, PoisonTrace, PoisonWatch, RestoreEstimate
from sgoif.tasks.shift import Alarm, Sentinel, ShiftWatch
from sgoif.tasks.unlearning import Limits, Unlearner

__all__ = [
    "Alarm",
    "Curriculum",
    "CurriculumReport",
    "CurriculumSampler",
    "CurriculumSettings",
    "Decoys",
    "Family",
    "Found",
    "LabelErrors",
    "Limits",
    "PoisonTrace",
    "PoisonWatch",
    "RestoreEstimate",
    "Sentinel",
    "ShiftWatch",
    "Unlearner",
    "plant_decoys",
]
