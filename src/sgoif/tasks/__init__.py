"""From a run to decisions: each task ends in something a person can do.

Label errors and the curriculum rest on the scores of a monitor. The sentinel, the poison trace and the unlearner read
activations and features of a trained network; a monitor lends them its held-out examples, or features on the way.
"""

from sgoif.tasks.curriculum import Curriculum, CurriculumReport, CurriculumSettings
from sgoif.tasks.labels import LabelErrors, LabelFindings
from sgoif.tasks.ood import Alarm, Sentinel, ShiftWatch
from sgoif.tasks.poisoning import Family, PoisonTrace, PoisonWatch, RemovalEstimate, TraceResult
from sgoif.tasks.unlearning import Limits, Unlearner

__all__ = [
    "Alarm",
    "Curriculum",
    "CurriculumReport",
    "CurriculumSettings",
    "Family",
    "LabelErrors",
    "LabelFindings",
    "Limits",
    "PoisonTrace",
    "PoisonWatch",
    "RemovalEstimate",
    "Sentinel",
    "ShiftWatch",
    "TraceResult",
    "Unlearner",
]
