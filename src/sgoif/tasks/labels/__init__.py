"""Wrong labels: which ones, what they should be, and how sure that is.

evidence     what a monitor knows about every example, in a short run with one look more
channel      how true labels become given ones, estimated on the held-out examples
structure    how structured the noise looks
ranking      one ranking out of influence, margins and the channel
noise_rate   how many labels are wrong: three estimators, and the interval that they leave open
calibration  from the ranking and a rate to probabilities
judgement    all of these in order: surely wrong, worth a look, fine
checked      a few checked labels say which class is which
findings     the answers
errors       all of this for a monitor
"""

from sgoif.tasks.labels.errors import LabelErrors
from sgoif.tasks.labels.findings import LabelFindings

__all__ = ["LabelErrors", "LabelFindings"]
