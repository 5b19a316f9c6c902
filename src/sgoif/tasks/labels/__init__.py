"""Wrong labels: which ones, what they should be, and how sure that is.

evidence     what a monitor knows about every example
channel      how true labels become given ones, estimated on the held-out examples
fusion       one ranking out of influence, margin and channel
calibration  from the ranking to probabilities, and the noise rate
likelihood   what decoys say about both
strict       whether there is noise at all, where no decoys were planted
sure         how many are wrong where errors are dense and the model has learned their names
decoys       labels made wrong on purpose, so that the run itself shows what a wrong label looks like
errors       the answers
"""

from sgoif.tasks.labels.decoys import Decoys, plant_decoys
from sgoif.tasks.labels.errors import LabelErrors

__all__ = ["Decoys", "LabelErrors", "plant_decoys"]
